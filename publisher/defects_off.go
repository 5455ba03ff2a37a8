//go:build !onceward_defects

package publisher

// defect names a deliberate defect, by which tests show that their checks find
// it. A production binary has none: the constant removes the code.
const defect = ""
