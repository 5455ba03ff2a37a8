package late

import (
	"bytes"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
)

type silent struct{ sarama.ConsumerGroupHandler }

func (silent) Setup(sarama.ConsumerGroupSession) error { return nil }

// A session that does not come is told of once; one that came in time, or was over, is not.
func TestSession(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(h sarama.ConsumerGroupHandler, over func())
		lines     int
	}{
		"it does not come": {func(sarama.ConsumerGroupHandler, func()) {}, 1},
		"it comes":         {func(h sarama.ConsumerGroupHandler, _ func()) { _ = h.Setup(nil) }, 0},
		"it is over":       {func(_ sarama.ConsumerGroupHandler, over func()) { over() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				h, over := Session(silent{}, slog.New(slog.NewTextHandler(&log, nil)), []string{"kafka-1:9092"})
				time.Sleep(After / 2) // of fake time
				tc.meanwhile(h, over)
				time.Sleep(3 * After)
				synctest.Wait()
				require.Equal(t, tc.lines, bytes.Count(log.Bytes(), []byte("no session with Kafka yet")))
				require.Equal(t, tc.lines, bytes.Count(log.Bytes(), []byte("kafka-1:9092")))
			})
		})
	}
}
