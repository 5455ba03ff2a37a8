package relay_test

import (
	"fmt"

	"github.com/onceward/onceward/relay"
)

// What a relay would refuse at its start names the field.
func ExampleConfig_Validate() {
	cfg := relay.Default()
	cfg.Name = "Orders!"
	fmt.Println(cfg.Validate())
	// Output: config: name: "Orders!": want 1 to 54 characters of a-z, 0-9 and _
}
