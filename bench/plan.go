package main

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward/bench/internal/report"
)

// plan says how much of what is measured.
type plan struct {
	quick     bool
	busy      string // auto, yes, no
	out       string // folder of the results
	relay     string // the program
	again     string // that of the side of this name
	workloads []string
	only      []string // sides; all when empty
	rounds    int
	events    map[string]int   // of a backlog, by workload
	pace      time.Duration    // length of trickle and steady
	paces     int              // rounds of them
	calls     time.Duration    // length of each side of enqueue and consume in a round
	points    map[string][]int // of the curves
	judged    bool             // it has the sizes by which bars are judged
}

// allWorkloads in their order, but for the curves, which take hours.
var allWorkloads = []string{
	report.Single, report.Bulk, report.Mixed, report.Large, report.Hogs, report.Trickle, report.Steady,
	report.Enqueue, report.Consume,
}

// parse reads the flags.
func parse(args []string) (plan, error) {
	var p plan
	var workloads, sides, points string
	var events, rounds int
	var seconds float64
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&p.quick, "quick", false, "a look in ten minutes, which judges no bar")
	flags.StringVar(&p.busy, "busy", "auto", "yes: the machine has other work, judge costs and batches only; no; auto: look")
	flags.StringVar(&p.out, "out", "bench/results/last", "folder of the results")
	flags.StringVar(&p.relay, "relay", "bin/relay", "the relay's program")
	flags.StringVar(&p.again, "again", "", "program of the side again, to compare another build; empty: the relay's, and the difference is the noise")
	flags.StringVar(&workloads, "workloads", strings.Join(allWorkloads, ","),
		"what to measure; growth is all curves, which are "+strings.Join(report.Curves, ","))
	flags.StringVar(&points, "points", "", "points of every curve, with commas between; empty: the plan's, and only with those bars are judged")
	flags.StringVar(&sides, "sides", "", "only these of the sides, with commas between; empty: all, and only with those bars are judged")
	flags.IntVar(&events, "events", 0, "size of every backlog, of large at most the plan's; 0: the plan's, and only with that bars are judged")
	flags.IntVar(&rounds, "rounds", 0, "rounds of every workload; 0: likewise")
	flags.Float64Var(&seconds, "seconds", 0, "length of what runs for a time; 0: likewise")
	if err := flags.Parse(args); err != nil {
		return plan{}, err
	}
	if p.again == "" {
		p.again = p.relay
	}
	p.size()
	p.judged = !p.quick && events <= 0 && rounds <= 0 && seconds <= 0 && points == "" && sides == ""
	p.workloads = words(workloads)
	if at := slices.Index(p.workloads, report.Growth); at >= 0 {
		p.workloads = slices.Replace(p.workloads, at, at+1, report.Curves...)
	}
	p.only = words(sides)
	if events > 0 {
		for workload := range p.events {
			if workload != report.Large || events < p.events[workload] {
				p.events[workload] = events
			}
		}
	}
	if rounds > 0 {
		p.rounds, p.paces = rounds, rounds
	}
	if seconds > 0 {
		p.pace = time.Duration(seconds * float64(time.Second))
		p.calls = p.pace
	}
	return p, errors.Join(p.setPoints(words(points)), p.check(flags.Args()))
}

// size sets what the flags may change.
func (p *plan) size() {
	p.rounds, p.paces, p.pace, p.calls = 9, 9, 20*time.Second, 5*time.Second
	p.events = map[string]int{
		report.Single: 750_000, report.Bulk: 1_500_000, report.Mixed: 500_000, report.Large: 8_000,
		report.Hogs: 300_000, report.Growth: 1_000_000,
	}
	p.points = fullPoints()
	if p.quick {
		p.rounds, p.paces, p.pace, p.calls = 3, 1, 10*time.Second, time.Second
		p.events = map[string]int{
			report.Single: 60_000, report.Bulk: 100_000, report.Mixed: 50_000, report.Large: 1_000,
			report.Hogs: 100_000, report.Growth: 100_000,
		}
		p.points = quickPoints()
	}
}

// setPoints puts given points in the place of the plan's.
func (p *plan) setPoints(given []string) error {
	var points []int
	for _, word := range given {
		point, err := strconv.Atoi(word)
		if err != nil || point < 1 {
			return fmt.Errorf("-points: %q is no whole number above 0", word)
		}
		points = append(points, point)
	}
	for _, curve := range report.Curves {
		if len(points) > 0 {
			p.points[curve] = points
		}
	}
	return nil
}

func (p *plan) check(rest []string) error {
	var errs []error
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("%q is no flag; -help lists them", rest[0]))
	}
	for _, w := range p.workloads {
		if !slices.Contains(allWorkloads, w) && !report.Grows(w) {
			errs = append(errs, fmt.Errorf("-workloads: %q is none; want some of %s", w, strings.Join(append(allWorkloads, report.Growth), ",")))
		} else if len(p.sides(w)) == 0 {
			errs = append(errs, fmt.Errorf("-sides: %s has only %s", w, strings.Join(p.planned(w), ",")))
		}
	}
	known := p.everySide()
	for _, s := range p.only {
		if !slices.Contains(known, s) {
			errs = append(errs, fmt.Errorf("-sides: %q is none; want some of %s", s, strings.Join(known, ",")))
		}
	}
	if !slices.Contains([]string{"auto", "yes", "no"}, p.busy) {
		errs = append(errs, fmt.Errorf("-busy is %q; want auto, yes or no", p.busy))
	}
	return errors.Join(errs...)
}

func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// sides are those of a workload, in the order of the first round.
func (p *plan) sides(workload string) []string {
	all := p.planned(workload)
	return slices.DeleteFunc(all, func(side string) bool {
		return len(p.only) > 0 && !slices.Contains(p.only, side)
	})
}

// planned are the sides of a workload before -sides.
func (p *plan) planned(workload string) []string {
	switch workload {
	case report.Single:
		return []string{report.Ceiling, report.Reader, report.Idempotent, report.Again, report.ExactlyOnce,
			report.Polling, report.DebeziumTuned}
	case report.Bulk:
		sides := []string{report.Ceiling, report.Reader, report.Idempotent, report.ExactlyOnce}
		if !p.quick {
			sides = append(sides, report.DebeziumTuned)
		}
		return sides
	case report.Mixed, report.Large:
		return []string{report.Ceiling, report.Idempotent, report.ExactlyOnce}
	case report.Hogs:
		return []string{report.Idempotent}
	case report.Trickle:
		sides := []string{report.Idempotent, report.ExactlyOnce, report.Polling, report.DebeziumTuned}
		if !p.quick {
			sides = append(sides, report.DebeziumDefault)
		}
		return sides
	case report.Steady:
		return []string{report.Idempotent, report.ExactlyOnce}
	case report.Enqueue:
		return []string{report.Insert, report.EnqueueOne, report.EnqueueMany}
	case report.Consume:
		return []string{report.SQL, report.Tx, report.SQLBatch, report.BatchOf}
	case report.GrowthClaims:
		return []string{report.Tx, report.BatchOf}
	case report.GrowthAggregates: // nothing of a transaction is by aggregate
		return []string{report.Idempotent}
	case report.GrowthBacklog, report.GrowthPartitions, report.GrowthTopics, report.GrowthTransaction,
		report.GrowthDistance:
		return []string{report.Idempotent, report.ExactlyOnce}
	}
	return nil
}

// everySide lists the sides of all workloads.
func (p *plan) everySide() (all []string) {
	for _, workload := range allWorkloads {
		for _, side := range p.planned(workload) {
			if !slices.Contains(all, side) {
				all = append(all, side)
			}
		}
	}
	return all
}

func (p *plan) hasDebezium() bool {
	for _, workload := range p.workloads {
		for _, side := range p.sides(workload) {
			if side == report.DebeziumTuned || side == report.DebeziumDefault {
				return true
			}
		}
	}
	return false
}

// turned returns sides or points in the order of a round: every other round goes backwards, so that
// of two each is as often the first, and every two rounds another begins.
func turned[T any](sides []T, round int) []T {
	order := slices.Clone(sides)
	if len(order) == 0 {
		return order
	}
	at := round / 2 % len(order)
	order = append(order[at:], order[:at]...)
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}
