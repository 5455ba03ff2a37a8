package settings

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Every key of the configuration that may hold a secret is masked, also those of
// later releases.
func TestSecretsAreMaskedByName(t *testing.T) {
	for _, name := range []string{"dsn", "maintenance_dsn", "password", "operator_token", "client_secret"} {
		require.NotContains(t, mask(name, "s3cr3t"), "s3cr3t", name)
		require.NotContains(t, mask(name, "postgres://u:s3cr3t@h/d"), "s3cr3t", name)
		require.Equal(t, "/etc/secrets/x", mask(name+"_file", "/etc/secrets/x"))
		require.NotContains(t, mask(name+"_file", "s3cr3t"), "s3cr3t")
		require.Empty(t, mask(name, ""))
	}
	require.Equal(t, "orders", mask("name", "orders"))
}
