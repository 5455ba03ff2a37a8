// Package redisserver starts a real Redis for end-to-end tests: one server, on a free loopback
// port, in a folder of the test.
//
// When [Start] returns, the server takes commands. A [Server] can be killed, stopped in the middle
// of everything, started again and given another dump. The test owns it, and its end, or death, ends the server.
package redisserver
