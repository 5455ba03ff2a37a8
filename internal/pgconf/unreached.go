package pgconf

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// Unreached returns the error of a connection with what to look at, where it failed before
// a server answered in its protocol. It adds nothing of the connection string.
func Unreached(err error) error {
	if look := lookAt(err); look != "" {
		return fmt.Errorf("%w; %s", err, look)
	}
	return err
}

// lookAt is what to look at; empty: a server answered, or what failed is not known.
func lookAt(err error) string {
	var name *net.DNSError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var timeout net.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &authority):
		return "the server's certificate is signed by an authority that is not known here: name the file of its CA by sslrootcert"
	case errors.As(err, &host):
		return "the server's certificate is for another name: connect by a name that it has, or have one issued for this one"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired, or is not valid yet by the clock of this machine: renew it, or set the clock"
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return "this server speaks no TLS: set ssl = on there, or, only on a network that nobody else can read, sslmode=disable in the connection string"
	case errors.As(err, &name):
		return "the host of the connection string has no address: is its name right, and does this machine resolve it?"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: are host and port of the connection string PostgreSQL's, is the server started, and has it this address in listen_addresses?"
	case errors.Is(err, syscall.ENOENT):
		return "no server has its socket there: name the folder of unix_socket_directories, or a host, in the connection string, and start the server"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		return "nobody answered in time: is the host of the connection string right, and does a firewall let this machine in?"
	}
	return ""
}
