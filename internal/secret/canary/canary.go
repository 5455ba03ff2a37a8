// Package canary has connection strings that hold a known password in every form
// that libpq takes, and in the forms that people give it by mistake. Tests hand
// them to everything that takes one, and look for the password in everything that
// comes out.
package canary

import "strings"

// Word is in every string, as the password or as a part of it.
const Word = "S3CR3T"

// Strings returns them all: legal ones, each also with a setting that makes it
// unusable, and mistakes. No server listens where they lead.
func Strings() []string {
	var all []string
	for _, password := range []string{
		"password=S3CR3T", "password = S3CR3T", "password\t=\tS3CR3T", "password =S3CR3T", `password=a\ S3CR3T`, `password=a\'S3CR3T`, `password=a\\S3CR3T`,
		"password='S3CR3T'", "password = 'S3CR3T'", "password='a S3CR3T'", `password='a\'S3CR3T'`, `password = 'a\' S3CR3T'`, "sslpassword=S3CR3T", "sslpassword = 'a S3CR3T'",
	} {
		base := "host=127.0.0.1 port=1 user=u dbname=d " + password
		all = append(all, base, password+" host=127.0.0.1 port=1 user=u dbname=d")
		for _, broken := range []string{
			"port=x", "sslmode=nope", "sslmode=verify-full sslrootcert=/nowhere/ca.pem", "target_session_attrs=x", "connect_timeout=x", "default_query_exec_mode=x", "service=none", "user",
		} {
			all = append(all, base+" "+broken)
		}
	}
	for _, url := range []string{
		"postgres://u:S3CR3T@127.0.0.1:1/d?", "postgresql://u:S3CR3T@127.0.0.1:1/d?", "postgres://u:a%20S3CR3T@127.0.0.1:1/d?", "postgres://u:a:S3CR3T@127.0.0.1:1/d?",
		"postgres://u:S3CR3T@[::1]:1/d?", "postgres://u:S3CR3T@127.0.0.1:1,127.0.0.1:2/d?", "postgres://u:S3CR3T@/d?host=127.0.0.1&port=1&",
		"postgres://127.0.0.1:1/d?user=u&password=S3CR3T&", "postgres://127.0.0.1:1/d?user=u&pass%77ord=S3CR3T&", "postgres://127.0.0.1:1/d?user=u&password=a%26S3CR3T&",
		"postgres://127.0.0.1:1/d?user=u&sslpassword=S3CR3T&",
	} {
		all = append(all, strings.TrimRight(url, "?&"))
		for _, broken := range []string{"port=x", "sslmode=nope", "sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "target_session_attrs=x", "x", "x=%zz"} {
			all = append(all, url+broken)
		}
	}
	return append(all, Mistakes()...)
}

// Mistakes returns strings in which the password stands where another setting is
// read, and strings that are none.
func Mistakes() []string {
	return []string{
		"postgres://u:a@S3CR3T@127.0.0.1:1/d", "postgres://u:a/S3CR3T@127.0.0.1:1/d", "postgres://127.0.0.1:1/S3CR3T@127.0.0.1:1/d", "postgres://u:a#S3CR3T@127.0.0.1:1/d",
		"postgres://127.0.0.1:1?S3CR3T@127.0.0.1:1/d", "postgres://u:S3CR3T@127.0.0.1:port/d", "postgres://u:S3CR3T@[::1/d", "postgres://u:S3CR3T%zz@127.0.0.1:1/d",
		"postgress://u:S3CR3T@127.0.0.1:1/d?sslmode=disable", "postgres:/u:S3CR3T@127.0.0.1:1/d", "u:S3CR3T@127.0.0.1:1/d", "//u:S3CR3T@127.0.0.1:1/d",
		"host=127.0.0.1 port=1 password=a S3CR3T", "host=127.0.0.1 port=1 password='S3CR3T", `host=127.0.0.1 port=1 password='S3CR3T\`, "host=127.0.0.1 port=1 password 'S3CR3T' user=u",
		"host=127.0.0.1 port=1 passwd=S3CR3T sslmode=nope", "host=127.0.0.1;port=1;password=S3CR3T;user=u",
	}
}

// Misplaced returns what stands where the path of a secret's file belongs when
// somebody puts the secret there.
func Misplaced() []string {
	return append(Mistakes(), "S3CR3T", "/S3CR3T", "a/S3CR3T", "S3CR3T/b+c==", strings.Repeat("x", 300)+"S3CR3T")
}
