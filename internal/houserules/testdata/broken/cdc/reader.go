package cdc

import _ "github.com/onceward/onceward/publisher"
