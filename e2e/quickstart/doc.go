// Package quickstart holds the test that does what the README's quick start and
// docs/quickstart.md say, word for word.
package quickstart
