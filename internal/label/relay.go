package label

// NoRelay says that the database knows of no relay: who was retired has left no row.
const NoRelay = "no relay is known here: none has begun yet, or all were retired"
