"""Where events come from: files of four formats, watched folders, Kafka."""
