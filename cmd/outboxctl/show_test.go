package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/states"
)

// TestShowOfAnEditedEvent: the row is not what was published.
func TestShowOfAnEditedEvent(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for state, says := range map[string]bool{states.LetterReplayed: true, states.LetterOpen: false} {
		r := &events.Life{Key: "orders:1", Row: &events.Row{PayloadPreview: "written"}, DeadLetters: []events.Letter{{State: state, EditedAt: &at}}}
		p := &page{}
		printShow(p, r)
		require.Equal(t, says, strings.Contains(p.text.String(), "published with edited content"), state)
		require.Contains(t, p.text.String(), state+", edited")
	}
}
