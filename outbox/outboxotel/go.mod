module github.com/onceward/onceward/outbox/outboxotel

go 1.24.0

require (
	github.com/onceward/onceward/outbox v0.0.0
	github.com/stretchr/testify v1.12.1
	go.opentelemetry.io/otel/trace v1.41.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.8.0 // indirect
	go.opentelemetry.io/otel v1.41.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/text v0.29.0 // indirect
)
