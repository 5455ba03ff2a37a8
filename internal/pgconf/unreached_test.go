package pgconf

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// answering is a server that says one byte to whoever asks for TLS, or nothing, and goes
// on as it is told.
func answering(t *testing.T, say string, goOn func(net.Conn)) (port int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				request := make([]byte, 8)
				if _, err := io.ReadFull(conn, request); err != nil {
					return
				}
				_, _ = io.WriteString(conn, say)
				goOn(conn)
			}()
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

// What a wrong address, port or way of TLS looks like, by the driver's own errors.
func TestUnreachedSaysWhatToLookAt(t *testing.T) {
	web := httptest.NewTLSServer(nil)
	t.Cleanup(web.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), 0o600))
	hang := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	overTLS := func(conn net.Conn) {
		_ = tls.Server(conn, &tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12}).Handshake()
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := free.Addr().(*net.TCPAddr).Port
	require.NoError(t, free.Close())

	for dsn, want := range map[string]string{
		fmt.Sprintf("host=127.0.0.1 port=%d sslmode=disable", nobody): "nothing listens there",
		"host=" + t.TempDir(): "no server has its socket there",
		fmt.Sprintf("host=127.0.0.1 port=%d sslmode=require", answering(t, "N", hang)):                           "this server speaks no TLS",
		fmt.Sprintf("host=127.0.0.1 port=%d sslmode=require connect_timeout=1", answering(t, "", hang)):          "nobody answered in time",
		fmt.Sprintf("host=127.0.0.1 port=%d sslmode=verify-full", answering(t, "S", overTLS)):                    "name the file of its CA by sslrootcert",
		fmt.Sprintf("host=localhost port=%d sslmode=verify-full sslrootcert=%s", answering(t, "S", overTLS), ca): "the server's certificate is for another name",
	} {
		_, err := pgconn.Connect(t.Context(), dsn+" user=u dbname=d")
		require.Error(t, err, dsn)
		explained := Unreached(err)
		require.ErrorContains(t, explained, want, dsn)
		require.ErrorIs(t, explained, err)
	}
	require.ErrorContains(t, Unreached(&net.DNSError{}), "has no address")
	require.ErrorContains(t, Unreached(x509.CertificateInvalidError{Reason: x509.Expired}), "has expired")
	other := errors.New("other")
	require.Equal(t, other, Unreached(other))
	require.NoError(t, Unreached(nil))
}
