// Package config reads relay.yaml, the environment and the command line into a
// [relay.Config]. A program that embeds a relay fills that struct itself and needs
// none of this.
//
// What it refuses names the key, in the words of the file, and never repeats a
// value that may be a secret.
package config
