//go:build e2e

package partition_test

import (
	"os"
	"testing"

	"github.com/onceward/onceward/internal/testdb"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }
