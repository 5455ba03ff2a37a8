package publisher

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/record"
)

// Route sends the events that match to a topic.
type Route struct {
	Match Match
	// Topic is a topic name, or a template over {namespace}, {aggregate_type}
	// and {event_type}, e.g. "{namespace}.{aggregate_type}".
	Topic string
}

// Match selects events by globs: * stands for any run of characters, ? for one
// byte. An empty pattern matches everything.
type Match struct {
	Namespace     string
	AggregateType string
	EventType     string
}

// origin is all of a row that routing may look at. The aggregate's id is left
// out on purpose: it would make a topic per aggregate, without bound.
type origin struct {
	namespace, aggregateType, eventType string
}

// router decides on the topic. It is immutable and pure.
type router struct {
	routes   []compiledRoute
	allow    []string
	reserved []string // of the checkpoint
	// byEventType: some route looks at the event type, so that a decision
	// holds for one event type only.
	byEventType bool
}

type compiledRoute struct {
	match    Match
	template template
}

// template is a sequence of literal texts and variables.
type template []segment

type segment struct {
	literal  string
	variable func(origin) string // nil for a literal
}

var variables = map[string]func(origin) string{
	"namespace":      func(o origin) string { return o.namespace },
	"aggregate_type": func(o origin) string { return o.aggregateType },
	"event_type":     func(o origin) string { return o.eventType },
}

func newRouter(routes []Route, allow []string, reserved ...string) (*router, error) {
	if len(routes) == 0 {
		return nil, configError("Routes", "[]", `no event could be published; add one, e.g. Topic "{namespace}.{aggregate_type}"`)
	}
	r := &router{allow: allow, reserved: reserved}
	for i, route := range routes {
		field := fmt.Sprintf("Routes[%d].Topic", i)
		t, err := parseTemplate(route.Topic)
		if err != nil {
			return nil, configError(field, fmt.Sprintf("%q", route.Topic), err.Error())
		}
		if topic, fixed := t.fixed(); fixed {
			if _, err := r.permit(topic); err != nil {
				return nil, configError(field, fmt.Sprintf("%q", route.Topic), err.Error())
			}
		}
		r.routes = append(r.routes, compiledRoute{match: route.Match, template: t})
		r.byEventType = r.byEventType || route.Match.EventType != "" || strings.Contains(route.Topic, "{event_type}")
	}
	return r, nil
}

// topic returns the topic of an event, a [RouteError] when no route leads to an
// allowed one, or a [record.RowError] when what the row says is no topic name.
func (r *router) topic(o origin) (string, error) {
	for _, route := range r.routes {
		if route.match.matches(o) {
			return r.permit(route.template.execute(o))
		}
	}
	return "", &RouteError{
		Route:  clip(o.namespace) + "/" + clip(o.aggregateType),
		Reason: fmt.Sprintf("no route matches namespace %q, aggregate type %q, event type %q", clip(o.namespace), clip(o.aggregateType), clip(o.eventType)),
		Cure:   "add an entry to routes in the relay's configuration" + andRestart,
	}
}

// TopicOf returns the topic that the routes lead an event to. It needs no
// connection. The error is what Publish would return: a [*RouteError] when no
// route matches or the topic is not allowed, a [*record.RowError] for a name that
// Kafka cannot have; or that of a configuration that [Config.Validate] refuses.
func (c Config) TopicOf(namespace, aggregateType, eventType string) (string, error) {
	s, err := c.resolve()
	if err != nil {
		return "", err
	}
	return s.router.topic(origin{namespace, aggregateType, eventType})
}

// Permits says whether a topic that a replay names may be written, by what the
// configuration says. The error is what Publish would return, as of
// [Config.TopicOf].
func (c Config) Permits(topic string) error {
	s, err := c.resolve()
	if err != nil {
		return err
	}
	_, err = s.router.permit(topic)
	return err
}

// andRestart ends a cure that changes the configuration, which is read at the start
// alone. What the relay does not read there, as a topic, it finds by itself.
const andRestart = "; then start the relay again: it reads its configuration only then"

// orElse comes between what the relay finds by itself and what it reads at the start.
const orElse = ", and the relay goes on by itself; or "

// permit checks a topic name that a row may have made.
func (r *router) permit(topic string) (string, error) {
	if reason := InvalidTopic(topic); reason != "" {
		return "", &record.RowError{Field: "topic", Detail: fmt.Sprintf("%q %s", clip(topic), reason)}
	}
	if slices.Contains(r.reserved, topic) {
		return "", &record.RowError{Field: "topic", Detail: fmt.Sprintf("%q keeps the checkpoint of exactly-once mode and is never written", topic)}
	}
	if len(r.allow) == 0 {
		return topic, nil
	}
	for _, pattern := range r.allow {
		if glob(pattern, topic) {
			return topic, nil
		}
	}
	return "", &RouteError{
		Route:  topic,
		Topic:  topic,
		Reason: "is not in the allow-list",
		Cure:   "add it to topics.allow, or correct the route" + andRestart,
	}
}

// InvalidTopic says why Kafka, or we, would refuse a topic of this name; empty
// when it is fine. The rules are those of org.apache.kafka.common.internals.Topic.
func InvalidTopic(topic string) string {
	switch {
	case topic == "":
		return "is empty"
	case topic == "." || topic == "..":
		return "is a name that Kafka refuses"
	case len(topic) > 249:
		return fmt.Sprintf("has %d bytes, a topic name has at most 249", len(topic))
	case strings.HasPrefix(topic, "__"):
		return "belongs to Kafka itself and is never written"
	}
	if i := strings.IndexFunc(topic, func(c rune) bool { return !topicRune(c) }); i >= 0 {
		return fmt.Sprintf("has a character at byte %d that is not in [a-zA-Z0-9._-]", i)
	}
	return ""
}

func topicRune(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// Matches reports whether the pattern selects events with these columns. The
// first route whose Match does decides on an event.
func (m Match) Matches(namespace, aggregateType, eventType string) bool {
	return m.matches(origin{namespace, aggregateType, eventType})
}

func (m Match) matches(o origin) bool {
	return globOrEmpty(m.Namespace, o.namespace) && globOrEmpty(m.AggregateType, o.aggregateType) &&
		globOrEmpty(m.EventType, o.eventType)
}

func globOrEmpty(pattern, s string) bool { return pattern == "" || glob(pattern, s) }

// glob matches s against a pattern of literals, ? and *, in time O(len(pattern)
// × len(s)): on a mismatch only the last * has to swallow one byte more.
func glob(pattern, s string) bool {
	p, i := 0, 0
	star, resume := -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, resume = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			resume++
			p, i = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

func parseTemplate(text string) (template, error) {
	var t template
	for rest := text; rest != ""; {
		literal, after, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return nil, fmt.Errorf("a } without its {")
		}
		if literal != "" {
			t = append(t, segment{literal: literal})
		}
		if !found {
			break
		}
		name, tail, closed := strings.Cut(after, "}")
		if !closed {
			return nil, fmt.Errorf("a { without its }")
		}
		variable, known := variables[name]
		if !known {
			return nil, fmt.Errorf("unknown variable {%s}; there are {namespace}, {aggregate_type} and {event_type}", name)
		}
		t = append(t, segment{variable: variable})
		rest = tail
	}
	if len(t) == 0 {
		return nil, fmt.Errorf("empty; name a topic or a template")
	}
	return t, t.checkLiterals()
}

// checkLiterals finds at start what would otherwise make every row fail.
func (t template) checkLiterals() error {
	for _, s := range t {
		if i := strings.IndexFunc(s.literal, func(c rune) bool { return !topicRune(c) }); i >= 0 {
			return fmt.Errorf("%q has a character that is not in [a-zA-Z0-9._-]", s.literal)
		}
	}
	if strings.HasPrefix(t[0].literal, "__") {
		return fmt.Errorf("topics that begin with __ belong to Kafka itself")
	}
	return nil
}

// fixed returns the topic when the template has no variable.
func (t template) fixed() (string, bool) {
	for _, s := range t {
		if s.variable != nil {
			return "", false
		}
	}
	return t.execute(origin{}), true
}

func (t template) execute(o origin) string {
	var b strings.Builder
	for _, s := range t {
		if s.variable != nil {
			b.WriteString(s.variable(o))
		} else {
			b.WriteString(s.literal)
		}
	}
	return b.String()
}

// clip shortens a row-controlled text for an error.
func clip(s string) string {
	if s = label.Foreign(s); len(s) > 120 {
		return s[:120] + "…"
	}
	return s
}
