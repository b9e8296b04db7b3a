"""Where events come from: files of five formats, watched folders, databases, data frames, Kafka."""
