//go:build e2e

package migrations_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

// The letters of the schema before say in their text only how far a range goes that
// nobody could read; and the starts that have made a letter do not count against its redrive.
func TestLettersOfTheSchemaBefore(t *testing.T) {
	pool := testdb.New(t, "15")
	up(t, pool, migrations.Consumer, "")
	for _, name := range []string{"00009_letter_lives.sql", "00008_letters.sql"} {
		file, err := os.ReadFile("consumer/" + name)
		require.NoError(t, err)
		_, down, ok := strings.Cut(string(file), "-- +goose Down")
		require.True(t, ok)
		exec(t, pool, down)
	}
	exec(t, pool, "DELETE FROM onceward.consumer_migrations WHERE version_id >= 8")
	const insert = `INSERT INTO onceward.consumer_dead_letters (consumer_group, topic, kafka_partition, kafka_offset, reason, error, event_id) VALUES ('billing', 'orders', 3, $1, $2, $3, $4)`
	crashed, other := "01a21061-cf7f-7621-bb55-4186ee5af6f8", "01a21061-cf7f-7621-bb55-4186ee5af6f9"
	exec(t, pool, insert, 5, "unreadable", "offsets from 5 until 12 of orders/3: it unpacks to too much", nil)
	exec(t, pool, insert, 6, "unreadable", "an operator's own words", nil)
	exec(t, pool, insert, 7, "handler", "offsets from 7 until 12 of orders/3", other)
	exec(t, pool, insert, 8, "crash", "the process ended 20 times", crashed)
	exec(t, pool, `INSERT INTO onceward.attempts (event_id, consumer_group, attempts, starts, last_error, expires_at) SELECT id, 'billing', 0, 20, '', now() FROM unnest($1::uuid[]) id`, []string{crashed, other})
	up(t, pool, migrations.Consumer, "")
	require.Equal(t, "5 12, 6 0, 7 0, 8 0", scalar[string](t, pool, "SELECT string_agg(concat_ws(' ', kafka_offset, unreadable_until), ', ' ORDER BY kafka_offset) FROM onceward.consumer_dead_letters"))
	require.Equal(t, "0 20", scalar[string](t, pool, "SELECT string_agg(starts::text, ' ' ORDER BY event_id) FROM onceward.attempts"))
}
