package relay

import (
	_ "github.com/fergusstrange/embedded-postgres"
	_ "github.com/twmb/franz-go/pkg/kfake"
)
