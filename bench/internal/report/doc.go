// Package report is what a run of the benchmark leaves: every measurement, what follows from
// them, and both as JSON, Markdown, charts and one last line. Everything but [Results.Write] is
// pure.
package report
