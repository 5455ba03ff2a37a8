package outbox_test

import _ "github.com/onceward/onceward/record"
