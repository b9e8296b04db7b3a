import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/** Runs SQL statements within this process, and waits for the last one: java FlinkSql NAME=VALUE .. -- STATEMENT .. */
final class FlinkSql {
    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        int next = 0;
        for (; !arguments[next].equals("--"); next++) {
            String[] pair = arguments[next].split("=", 2);
            settings.setString(pair[0], pair[1]);
        }
        TableEnvironment tables =
                TableEnvironment.create(EnvironmentSettings.newInstance().withConfiguration(settings).build());
        for (next++; next < arguments.length - 1; next++) {
            tables.executeSql(arguments[next]);
        }
        tables.executeSql(arguments[next]).await();
    }
}
