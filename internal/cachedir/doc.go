// Package cachedir says where downloads are kept between runs: the binaries of
// PostgreSQL and the jars of Kafka that tests, demo and stack start.
//
// It owns no state. A download is made in a folder of its own beside the place
// where it will stand and is renamed into it when it is whole ([Fill]), so what is in
// the cache is whole, and two programs that fetch the same thing at once do not
// disturb each other.
package cachedir
