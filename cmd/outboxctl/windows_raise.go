package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/terminal"
)

func raiseCommand(flags []cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "raise", Usage: "raise a floor that lies below where claims are kept, as audit finds it", ArgsUsage: "GROUP CLASS",
		Description: "It is set to the day of the oldest partition, or to where retention has dropped claims, whichever is later. What\n" +
			"is detached is to be attached again instead. It needs the role onceward_consumer_maintainer.",
		Flags:  flags,
		Action: windowsRaise,
	}
}

// windowsRaise raises a floor to where claims are kept: by more only retention does,
// which knows what the group has finished.
func windowsRaise(c *cli.Context) error {
	change, err := readRaise(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	failed := func(err error) error {
		return fmt.Errorf("windows raise %s %s: %w", change.Group, change.Class, explainAdopt(err))
	}
	q := consumerdb.New(db)
	rows, err := q.ListWindows(c.Context, change.Group)
	if err != nil {
		return failed(err)
	}
	at := slices.IndexFunc(rows, func(v consumerdb.ListWindowsRow) bool { return v.Class == change.Class && v.RetiredAt == nil })
	if at < 0 {
		return failed(errNoClass)
	}
	from := rows[at].Floor
	to, err := oldestKept(c, db, q, from)
	if err != nil {
		return failed(err)
	}
	if !to.After(from) {
		return failed(fmt.Errorf("its floor %s is not below where claims are kept, from %s on: nothing was done", terminal.Stamp(&from), terminal.Stamp(&to)))
	}
	change.Changed = []string{fmt.Sprintf("floor %s, from %s", terminal.Stamp(&to), terminal.Stamp(&from))}
	if err := confirm(c, fmt.Sprintf("set %s of class %s of group %s: events before it that come yet are late", change.Changed[0], change.Class, change.Group)); err != nil {
		return err
	}
	n, err := q.RaiseWindow(c.Context, consumerdb.RaiseWindowParams{ConsumerGroup: change.Group, Class: change.Class, Floor: to, Did: ": " + change.Changed[0], Reason: change.Reason})
	if err == nil && n == 0 {
		err = errors.New("its floor was raised meanwhile: nothing was done")
	}
	if err != nil {
		return failed(err)
	}
	return answer(c, change, printWindowChange)
}

// readRaise checks what needs no server.
func readRaise(c *cli.Context) (*windowChange, error) {
	if err := checkOutput(c); err != nil {
		return nil, err
	}
	if c.NArg() != 2 {
		return nil, usage("%s takes GROUP and CLASS, got %d arguments; quote a class that ends with *", c.Command.HelpName, c.NArg())
	}
	change := &windowChange{
		Group: c.Args().Get(0), Class: c.Args().Get(1),
		Notes: []string{"members that run go by it within ten seconds; events before it that come yet are late"},
	}
	var err error
	change.Reason, err = readReason(c)
	return change, err
}

// oldestKept is from when on no claim is gone, which is said while none of a floor lies
// in a partition that could be attached again.
func oldestKept(c *cli.Context, db *operator.Database, q *consumerdb.Queries, floor time.Time) (time.Time, error) {
	leaves, err := partition.Leaves(c.Context, db, processedTable)
	if err != nil {
		return time.Time{}, err
	}
	oldest, err := q.Horizon(c.Context)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, err
	}
	attached := func(l partition.Leaf) bool { return l.Attached && !l.Pending }
	for _, l := range leaves {
		if !attached(l) && l.To().After(floor) && l.To().After(oldest) {
			return time.Time{}, fmt.Errorf("partition %s is detached, and may have claims from there on: %s", l.Name, l.AttachAgain(processedTable))
		}
	}
	if i := slices.IndexFunc(leaves, attached); i >= 0 && leaves[i].From().After(oldest) {
		oldest = leaves[i].From()
	}
	return oldest, nil
}
