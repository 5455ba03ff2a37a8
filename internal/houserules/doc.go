// Package houserules checks the rules of the house that no linter knows, as a
// test over the sources of this repository.
//
// [Check] parses every Go file below a folder, whatever its build tags, and
// reports what breaks a rule; [Dependencies] asks the go command what a package
// pulls in through other modules. Both only read. The test of this package runs them
// over the repository, and over testdata/broken, where each rule is broken
// once, so that a rule that no longer bites is noticed.
//
// [Blocks], [Spans] and [PageCalls] are what README and docs show to type; tests here, in
// cmd and in relay/config check that it works.
//
// Folders named testdata or vendor, hidden ones, and those with a go.mod of
// their own that go.work does not join are not looked at.
package houserules
