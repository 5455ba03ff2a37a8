// Package snapshot is about snapshots of the database, as pg_snapshot writes them:
// which transactions one sees ([Visible]), and which one is published ([Schedule],
// of which transactions were read and not seen: [Unseen]).
//
// It is pure: whoever has the connection takes a snapshot, writes the marker, and
// says which markers came back. The invariant: of what the published snapshot sees,
// everything has ended.
package snapshot
