module github.com/onceward/onceward/outbox

go 1.24.0
