// Package migrations installs, checks and removes Onceward's tables.
//
// There are two sides, each with migrations and a version table of its own, so
// that they may live in one database or in two:
//
//   - [Outbox], the producer's database: onceward.outbox and what the relay
//     keeps; versions in onceward.outbox_migrations.
//   - [Consumer], the consumer's database: onceward.processed_events and what
//     belongs to it; versions in onceward.consumer_migrations.
//
// The version table of the application's own migrations is never touched.
//
// # What Up does, in this order
//
//  1. refuses what in schema onceward leans on a function that is neither
//     PostgreSQL's nor Onceward's ([ErrHostileDependency]) and that 3 does not mend;
//     makes the schema when it is missing;
//  2. runs the versioned migrations, each in one transaction;
//  3. makes anew what of ours leans on such a function, and looks again; has
//     PostgreSQL validate the rules of the outbox, where older rows keep them
//     ([Result].NotValid names the others);
//  4. makes the daily partitions from 7 days back to 14 days ahead (UTC), 64
//     for claims, but none below the oldest there is: a range that retention
//     dropped never comes back;
//  5. on the outbox side, with a relay's name: makes the publication
//     onceward_<relay>;
//  6. after a migration, where the schema belongs to the owner of [Roles]: gives
//     the roles their rights on what is new.
//
// What is made belongs to the owner of the schema where Up runs as a member of
// that role.
//
// The publication must exist before the relay's slot is made. A slot decodes
// with the catalog as it was when each row was written, and rows written before
// the publication existed end the stream with an error instead of arriving.
//
// # Who waits for whom
//
// Up and Down hold one advisory lock of the database, in a session of their
// own, from the first look to the last statement. A second run waits for the
// first, at most [Config.LockTimeout], and then finds nothing left to do.
//
// What changes onceward.outbox itself gives way to a transaction that holds its
// lock for more than two seconds, because every writer waits behind it, and is
// tried again, for at most [Config.LockTimeout].
//
// Names in the sessions of Up and Down lead to PostgreSQL's own functions and
// operators, whatever search_path the role or the database has set.
//
// # What each failure does
//
// A step that fails leaves what the steps before it made; each step is atomic
// and is skipped when it was done before, so the cure is to run Up again. A
// schema newer than this binary is refused before anything is changed
// ([ErrNewerSchema]). A publication of the right name with other content is
// refused with the statements that mend it ([ErrPublication]).
//
// Down removes one migration after the other, the newest first; when one is
// refused, Up brings those back that were removed before it.
//
// Down removes what Up made and nothing else: it refuses while a slot of a
// relay exists ([ErrSlotExists]), PostgreSQL refuses while somebody's view or
// foreign key needs a table, and the schema stays when it was there before Up
// or when anything else lives in it.
//
// # Stability
//
// For embedders and operators' programs: names may change in a minor version, with a line
// in the changelog (docs/adr/0027-public-packages.md).
package migrations
