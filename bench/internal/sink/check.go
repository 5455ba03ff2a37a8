package sink

import "fmt"

// Check says whether the records of a topic are what was written: every event once, those of a
// key in order. It goes on from one reading of a topic to the next.
type Check struct {
	shape    Shape
	next     map[int]int   // by remainder: the number that comes next
	homes    map[int]int32 // by remainder: the partition of all
	seen     int
	problems []string
}

// maxProblems is how many are kept; the others are counted.
const maxProblems = 5

// NewCheck returns a check of topics whose first event has number 0.
func NewCheck(shape Shape) *Check {
	return &Check{shape: shape, next: make(map[int]int, shape.Keys), homes: make(map[int]int32, shape.Keys)}
}

// Record looks at the next record of a partition.
func (c *Check) Record(partition int32, key, value []byte) {
	c.seen++
	number, err := c.shape.Number(value)
	if err != nil {
		c.problem(err.Error())
		return
	}
	if string(key) != c.shape.Key(number) {
		c.problem(fmt.Sprintf("event %d has the key %.60q, not %q", number, key, c.shape.Key(number)))
	}
	remainder := number % c.shape.Keys
	want, ok := c.next[remainder]
	if !ok {
		want, c.homes[remainder] = remainder, partition
	}
	if home := c.homes[remainder]; home != partition {
		c.problem(fmt.Sprintf("event %d of %s is in partition %d, others are in %d", number, key, partition, home))
	}
	switch {
	case number < want:
		c.problem(fmt.Sprintf("event %d of %s came again, or after a later one", number, c.shape.Key(number)))
	case number > want:
		c.problem(fmt.Sprintf("event %d of %s came where %d was due", number, c.shape.Key(number), want))
	}
	c.next[remainder] = max(want, number+c.shape.Keys)
}

func (c *Check) problem(text string) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, text)
	}
}

// Complete returns what is wrong with a topic that ought to have the events below a number, and
// no other.
func (c *Check) Complete(below int) error {
	if c.seen != below {
		c.problem(fmt.Sprintf("it has %d records of %d events", c.seen, below))
	}
	if len(c.problems) == 0 {
		return nil
	}
	return fmt.Errorf("the topic is not what was written: %q", c.problems)
}
