// Package events looks at events: it lists those in one state, and tells the whole life of
// one, from the row of the producer's database to what consumer groups did with it.
//
// A [Life] is gathered step by step: [ReadLife] from the producer's database, then, where
// they are asked for, the consumer's database and Kafka, and then it is judged. The
// judgement is pure: a record of the event itself, seen in Kafka, outweighs everything;
// else the relay that is least far counts. What the database and the topic disagree about
// is said.
//
// It only reads, and what belongs together from one snapshot of the database.
package events
