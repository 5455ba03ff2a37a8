//go:build onceward_defects

package publisher

import "os"

// defect is injected by the environment variable DEFECT; see defects.go.
var defect = os.Getenv("DEFECT")
