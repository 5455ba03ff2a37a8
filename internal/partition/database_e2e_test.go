//go:build e2e

package partition_test

import (
	"testing"

	"github.com/onceward/onceward/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }
