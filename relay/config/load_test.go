package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/relay"
)

const minimal = `
name: orders
postgres: {dsn: "host=db sslmode=verify-full"}
kafka: {brokers: [kafka-1:9093]}
routes: [{topic: "{namespace}.{aggregate_type}"}]
`

// parse is [Load] of a file called relay.yaml that holds data.
func parse(data []byte, environ []string, settings ...string) (relay.Config, error) {
	cfg, found := read(data, environ, settings)
	return cfg, found.join("relay.yaml", cfg.Invalid())
}

func TestParseFillsDefaults(t *testing.T) {
	cfg, err := parse([]byte(minimal), nil)
	require.NoError(t, err)
	want := relay.Default()
	want.Name = "orders"
	want.Postgres.DSN = "host=db sslmode=verify-full"
	want.Kafka.Brokers = []string{"kafka-1:9093"}
	want.Routes = []relay.RouteConfig{{Topic: "{namespace}.{aggregate_type}"}}
	require.Equal(t, want, cfg)
	require.Equal(t, "onceward_orders", cfg.SlotName())
	require.Equal(t, "onceward_orders", cfg.PublicationName())
}

func TestParseReadsEveryKind(t *testing.T) {
	cfg, err := parse([]byte(minimal+`
queue: {bytes: 32MiB}
checkpoint_interval: 250ms
topics: {allow: ["shop.*"], create: true, partitions: 3}
admin: {listen: "off"}
`), nil)
	require.NoError(t, err)
	require.EqualValues(t, 32<<20, cfg.Queue.Bytes)
	require.Equal(t, 250*time.Millisecond, cfg.CheckpointInterval)
	require.Equal(t, relay.TopicsConfig{Allow: []string{"shop.*"}, Create: true, Partitions: 3, ReplicationFactor: 3, MaxCreated: 1000, PartitionChange: "go-on"}, cfg.Topics)
	require.Equal(t, "off", cfg.Admin.Listen)
}

func TestEnvironmentWinsOverTheFile(t *testing.T) {
	cfg, err := parse([]byte(minimal), []string{"PATH=/bin", "ONCEWARD_POSTGRES_DSN=host=other", "ONCEWARD_QUEUE_BYTES=1MiB", "ONCEWARD_TOPICS_CREATE=true", "ONCEWARD_STOP_GRACE=5s"})
	require.NoError(t, err)
	require.Equal(t, "host=other", cfg.Postgres.DSN)
	require.EqualValues(t, 1<<20, cfg.Queue.Bytes)
	require.True(t, cfg.Topics.Create)
	require.Equal(t, 5*time.Second, cfg.StopGrace)
}

// A database that the environment names wins over that of the file, whichever key
// either has; two in one place are an error.
func TestTheEnvironmentsDatabaseWins(t *testing.T) {
	withFile := strings.Replace(minimal, `dsn: "host=db sslmode=verify-full"`, "dsn_file: /run/secrets/dsn", 1)
	for name, tc := range map[string]struct {
		text, environ string
		settings      []string
		dsn, file     string
	}{
		"dsn over dsn":           {text: minimal, environ: "ONCEWARD_POSTGRES_DSN=host=other", dsn: "host=other"},
		"dsn over dsn_file":      {text: withFile, environ: "ONCEWARD_POSTGRES_DSN=host=other", dsn: "host=other"},
		"dsn_file over dsn":      {text: minimal, environ: "ONCEWARD_POSTGRES_DSN_FILE=/x", file: "/x"},
		"a setting over both":    {text: minimal, environ: "ONCEWARD_POSTGRES_DSN=host=other", settings: []string{"postgres.dsn_file=/x"}, file: "/x"},
		"an empty one is no one": {text: withFile, environ: "ONCEWARD_POSTGRES_DSN=", file: "/run/secrets/dsn"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := parse([]byte(tc.text), []string{tc.environ}, tc.settings...)
			require.NoError(t, err)
			require.Equal(t, [2]string{tc.dsn, tc.file}, [2]string{cfg.Postgres.DSN, cfg.Postgres.DSNFile})
		})
	}
	_, err := parse([]byte(strings.Replace(minimal, "{dsn:", "{dsn_file: /x, dsn:", 1)), []string{"ONCEWARD_POSTGRES_DSN=host=other"})
	require.ErrorContains(t, err, "the file has postgres.dsn and postgres.dsn_file")
	_, err = parse([]byte(minimal), []string{"ONCEWARD_POSTGRES_DSN=host=other", "ONCEWARD_POSTGRES_DSN_FILE=/x"})
	require.ErrorContains(t, err, "are both set")
}

func TestSettingsWinOverTheEnvironment(t *testing.T) {
	cfg, err := parse([]byte(minimal), []string{"ONCEWARD_QUEUE_BYTES=1MiB"}, "queue.bytes=2MiB", "admin.listen=off", "kafka.client_id=a=b")
	require.NoError(t, err)
	require.EqualValues(t, 2<<20, cfg.Queue.Bytes)
	require.Equal(t, "off", cfg.Admin.Listen)
	require.Equal(t, "a=b", cfg.Kafka.ClientID)
	for setting, want := range map[string]string{
		"queue.bytes":           "want key=value",
		"queue.byte=1":          "did you mean queue.bytes?",
		"kafka.broker=x":        "did you mean kafka.brokers? kafka.brokers is a list, which only the file can have",
		"kafka.brokers=x":       "--set kafka.brokers is a list, which only the file can have",
		"postgres.dsn=password": "everybody on the machine can read it",
	} {
		_, err := parse([]byte(minimal), nil, setting)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "password\"")
	}
}

// TestAWrongValueIsBlamedOnWhoHasIt: the file is named for what it has, and for nothing else; and no
// value is repeated that does not fit, since it may be a secret at the wrong place.
func TestAWrongValueIsBlamedOnWhoHasIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	for name, tc := range map[string]struct {
		text, variable, setting string
		load, check             string // load: after the path, where it begins with ": "
	}{
		"the file": {text: minimal + "topics: {partitions: S3CR3T}\n",
			load: ": config: topics.partitions: want a number", check: "topics.partitions: want a number"},
		"a variable that does not fit": {variable: "ONCEWARD_TOPICS_PARTITIONS=S3CR3T",
			load: "environment variable ONCEWARD_TOPICS_PARTITIONS: topics.partitions: want a number"},
		"a setting that does not fit": {setting: "topics.partitions=S3CR3T", load: "--set topics.partitions: want a number"},
		"a variable that is refused": {variable: "ONCEWARD_STOP_GRACE=0s",
			load: "environment variable ONCEWARD_STOP_GRACE: stop_grace: 0s: want more than 0"},
		"a setting that is refused": {setting: "stop_grace=0s", load: "--set stop_grace: 0s: want more than 0"},
		"a setting over a variable": {variable: "ONCEWARD_STOP_GRACE=5s", setting: "stop_grace=0s",
			load: "--set stop_grace: 0s: want more than 0"},
		"a variable over the file": {text: minimal + "stop_grace: 5s\n", variable: "ONCEWARD_STOP_GRACE=0s",
			load: "environment variable ONCEWARD_STOP_GRACE: stop_grace: 0s: want more than 0"},
		"an unknown variable": {variable: "ONCEWARD_STOP_GRAC=5s",
			load: "environment variable ONCEWARD_STOP_GRAC is not known; did you mean ONCEWARD_STOP_GRACE?"},
		"an unknown setting": {setting: "stop_grac=5s", load: "--set \"stop_grac\" is not known; did you mean stop_grace?"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.text == "" {
				tc.text = minimal
			}
			require.NoError(t, os.WriteFile(path, []byte(tc.text), 0o600))
			var settings []string
			if tc.setting != "" {
				settings = []string{tc.setting}
			}
			want, check := tc.load, tc.check
			if check == "" {
				check = want
			} else {
				want = path + want
			}
			_, err := Load(path, []string{tc.variable}, settings...)
			require.EqualError(t, err, want)
			_, report, err := Check(path, []string{tc.variable}, settings...)
			require.NoError(t, err)
			require.Equal(t, []string{check}, report.Problems)
		})
	}
	require.NoError(t, os.WriteFile(path, []byte(minimal+"log: {level: loud}\n"), 0o600))
	_, err := Load(path, []string{"ONCEWARD_STOP_GRACE=0s"})
	require.EqualError(t, err, path+": config: log.level: \"loud\": want one of [debug info warn error]\n"+
		"environment variable ONCEWARD_STOP_GRACE: stop_grace: 0s: want more than 0")
	var field *relay.FieldError
	_, err = Load(path, []string{"ONCEWARD_LOG_LEVEL=info", "ONCEWARD_STOP_GRACE=0s"})
	require.ErrorAs(t, err, &field)
	require.Equal(t, "stop_grace", field.Field)
	require.NoError(t, os.WriteFile(path, []byte(minimal), 0o600))
	_, report, err := Check(path, []string{"ONCEWARD_POSTGRES_DSN=host=db port=x"})
	require.NoError(t, err)
	require.Len(t, report.Problems, 1)
	require.Contains(t, report.Problems[0], "environment variable ONCEWARD_POSTGRES_DSN: postgres.dsn: port: want 1 to 65535")
}

// Nobody should switch security off because a program proposed it.
func TestNoSuggestionIsInsecure(t *testing.T) {
	for _, environ := range []string{"ONCEWARD_POSTGRES_PASSWORD=x", "ONCEWARD_POSTGRES_INSECUR=x", "ONCEWARD_KAFKA_INSECURITY=x"} {
		_, err := parse([]byte(minimal), []string{environ})
		require.ErrorContains(t, err, "did you mean ONCEWARD_")
		require.NotContains(t, strings.TrimPrefix(err.Error(), "environment variable "+strings.TrimSuffix(environ, "=x")), "INSECURE")
	}
	_, err := parse([]byte(minimal), nil, "postgres.insecur=true")
	require.NotContains(t, err.Error(), "insecure?")
	_, err = parse([]byte("name: orders\npostgres: {insecur: true}"), nil)
	require.NotContains(t, err.Error(), "insecure?")
}

// A value of the wrong kind is named by its path in the file, in the words of the
// file, and is not repeated.
func TestAValueOfTheWrongKindIsNamedByItsPath(t *testing.T) {
	for text, want := range map[string]string{
		"postgres: {dsn: {url: S3CR3T}}":                     "config: postgres.dsn: want text, not a map of keys",
		"postgres: {insecure: S3CR3T}":                       "config: postgres.insecure: ",
		"topics: {partitions: S3CR3T}":                       "config: topics.partitions: ",
		"topics: {partitions: [S3CR3T]}":                     "config: topics.partitions: want a number, not a list",
		"queue: {bytes: [S3CR3T]}":                           "config: queue.bytes: want a size, such as 1MiB, not a list",
		"checkpoint_interval: 5":                             "config: checkpoint_interval: duration 5 has no unit",
		"checkpoint_interval: {x: S3CR3T}":                   "config: checkpoint_interval: ",
		"routes: [{match: {namespace: [S3CR3T]}, topic: x}]": "config: routes[0].match.namespace: want text, not a list",
		"S3CR3T":       "parse YAML: ",
		"- S3CR3T":     "parse YAML: ",
		"a: b: S3CR3T": "parse YAML: ",
	} {
		_, err := parse([]byte(text), nil)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "S3CR3T", text)
		require.NotContains(t, err.Error(), "following error(s)", text)
	}
}

func TestParseRefusesAndSaysWhatToDo(t *testing.T) {
	for name, tc := range map[string]struct {
		yaml string
		env  []string
		want string
	}{
		"mode":                {minimal, []string{"ONCEWARD_KAFKA_MODE=exactly_once"}, "kafka.mode"},
		"headers":             {minimal + "headers: none", nil, "headers"},
		"poison":              {strings.Replace(minimal, "}\"}]", "}\", poison: parc}]", 1), nil, `routes[0].poison: "parc"`},
		"interval":            {minimal, []string{"ONCEWARD_KAFKA_TRANSACTION_INTERVAL=40s"}, "half of kafka.transaction.timeout"},
		"timeout":             {minimal, []string{"ONCEWARD_KAFKA_TRANSACTION_TIMEOUT=16m"}, "want 1s to 15m"},
		"max_bytes":           {minimal, []string{"ONCEWARD_KAFKA_TRANSACTION_MAX_BYTES=1KiB"}, "kafka.transaction.max_bytes"},
		"partition_change":    {minimal + "topics: {partition_change: stop}", nil, "topics.partition_change"},
		"parked":              {minimal + "max_parked_aggregates: -1", nil, "max_parked_aggregates"},
		"unknown key":         {minimal + "quue: {bytes: 1MiB}", nil, "quue: unknown key; did you mean queue?"},
		"unknown nested key":  {minimal + "topics: {alow: [x]}", nil, "topics.alow: unknown key; did you mean topics.allow?"},
		"unknown route key":   {"name: a\nroutes: [{topics: x}]", nil, "routes[0].topics: unknown key; did you mean routes[0].topic?"},
		"unknown variable":    {minimal, []string{"ONCEWARD_POSTGRES_DNS=x"}, "did you mean ONCEWARD_POSTGRES_DSN?"},
		"like a list":         {minimal, []string{"ONCEWARD_KAFKA_BROKER=x"}, "did you mean ONCEWARD_KAFKA_BROKERS? kafka.brokers is a list, which only the file can have"},
		"list as a variable":  {minimal, []string{"ONCEWARD_KAFKA_BROKERS=x"}, "kafka.brokers is a list, which only the file can have"},
		"no port":             {strings.Replace(minimal, "kafka-1:9093", "kafka-1", 1), nil, `kafka.brokers[0]: "kafka-1": want host:port`},
		"template":            {strings.Replace(minimal, "{aggregate_type}", "{aggregate_typ}", 1), nil, "routes[0].topic: \"{namespace}.{aggregate_typ}\": unknown variable {aggregate_typ}"},
		"not a map":           {minimal + "queue: 5", nil, "queue: want a map"},
		"not a list":          {"routes: {topic: x}", nil, "routes: want a list"},
		"bad size":            {minimal + "queue: {bytes: 5 elephants}", nil, "size"},
		"duration, no unit":   {minimal + "stop_grace: 30", nil, "no unit"},
		"bad duration":        {minimal + "stop_grace: 30 apples", nil, "stop_grace"},
		"not YAML":            {"name: [", nil, "parse YAML"},
		"bad name":            {"name: Orders!\n", nil, `name: "Orders!"`},
		"no dsn":              {"name: a\n", nil, "postgres.dsn"},
		"two dsn":             {minimal, []string{"ONCEWARD_POSTGRES_DSN=y", "ONCEWARD_POSTGRES_DSN_FILE=/x"}, "give one of them"},
		"no brokers":          {"name: a\npostgres: {dsn: x}", nil, "kafka.brokers: empty"},
		"no routes":           {"name: a\npostgres: {dsn: x}\nkafka: {brokers: [a]}", nil, "routes: empty"},
		"bad choice":          {minimal + "log: {level: loud}", nil, `log.level: "loud": want one of`},
		"mode of later":       {minimal, []string{"ONCEWARD_KAFKA_MODE=exactly"}, "kafka.mode"},
		"queue too small":     {minimal + "queue: {bytes: 1}", nil, "queue.bytes: 1"},
		"checkpoint too fast": {minimal + "checkpoint_interval: 1ms", nil, "checkpoint_interval: 1ms"},
		"partitions":          {minimal + "outbox: {partitions: {ahead: -1}}", nil, "outbox.partitions.ahead: -1: want 1 to"},
		"no grace":            {minimal + "stop_grace: 0s", nil, "stop_grace: 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse([]byte(tc.yaml), tc.env)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// What cannot be read hides no value that is wrong, and no error follows from another.
func TestLoadSaysAllAtOnce(t *testing.T) {
	text := "nam: x\nkafka: {brokers: [kafka-1], modus: x}\nstop_grace: 5\n" +
		"postgres: {dsn: \"host=db sslmode=verify-full\"}\nroutes: [{topic: \"{aggregate_typ}\"}]\nlog: {level: loud}\n"
	_, err := parse([]byte(text), nil)
	for _, want := range []string{"nam: unknown key", "kafka.modus: unknown key", "stop_grace: duration 5 has no unit", "kafka.brokers[0]: ", "routes[0].topic: ", "log.level: "} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "config: name:", "it is what nam means")
	require.Len(t, strings.Split(err.Error(), "\n"), 6, err.Error())
	_, err = parse([]byte("name: ["), nil)
	require.Len(t, strings.Split(err.Error(), "\n"), 1, err.Error())
}

func TestLoadNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	_, err := Load(path, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "name the relay's configuration with --config FILE")
	require.NoError(t, os.WriteFile(path, []byte("nam: x"), 0o600))
	_, err = Load(path, nil)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "did you mean name?")
}

// TestLoadOfflineNeedsNoDatabase, and refuses all else that Load refuses.
func TestLoadOfflineNeedsNoDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	load := func(text string) (relay.Config, error) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return LoadOffline(path, nil)
	}
	const rest = "name: orders\nkafka: {brokers: [\"b:9093\"]}\nroutes: [{topic: t}]\noutbox: {partitions: {keep: 30}}\n"
	cfg, err := load(rest)
	require.NoError(t, err)
	require.Equal(t, 30, cfg.Outbox.Partitions.Keep)
	_, err = Load(path, nil)
	require.ErrorContains(t, err, "postgres.dsn")
	for text, want := range map[string]string{
		"postgres: {dsn: a, dsn_file: b}\n" + rest: "give one of them",
		rest + "quue: {bytes: 1MiB}\n":             "did you mean queue?",
		strings.Replace(rest, "30", "0x", 1):       "outbox.partitions.keep",
		strings.Replace(rest, "topic: t", "", 1):   "routes[0].topic",
		":":                                        "parse YAML",
	} {
		_, err := load(text)
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, path)
	}
	_, err = LoadOffline(path+".gone", nil)
	require.ErrorContains(t, err, "read config")
}
