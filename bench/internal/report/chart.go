package report

import (
	"encoding/xml"
	"fmt"
	"maps"
	"math"
	"strings"
)

// Chart is a chart of bars that lie: one group a label, in each a bar for every part, on top of
// one another where they add up.
type Chart struct {
	Title string
	Unit  string
	Parts []string
	Rows  []Row
	// Stacked puts the parts of a row behind one another. A chart whose parts do not add up has
	// a bar for each.
	Stacked bool
	// Log draws powers of ten at equal distances, for figures that differ by hundreds.
	Log bool
}

// Row is one group of bars; a value that is not a number has no bar.
type Row struct {
	Label  string
	Values []float64 // by part
}

// Measures of a chart, in pixels.
const (
	width  = 760
	label  = 150 // for the names of the rows
	margin = 90  // for the figures behind the bars
	top    = 62
	bar    = 14
	gap    = 10
)

// colours are those of the parts, told apart also by those who see few colours.
var colours = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9"}

// SVG draws the chart.
func (c Chart) SVG() string {
	lines := 1
	if !c.Stacked {
		lines = max(1, len(c.Parts))
	}
	height := top + len(c.Rows)*(lines*bar+gap) + gap
	var out strings.Builder
	begin(&out, height, c.Title+", "+c.Unit, c.Parts)
	for i, row := range c.Rows {
		c.row(&out, row, top+i*(lines*bar+gap))
	}
	out.WriteString("</svg>\n")
	return out.String()
}

// begin draws what is above every chart: its title and what the colours are.
func begin(out *strings.Builder, height int, title string, parts []string) {
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(out, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	fmt.Fprintf(out, `<text x="10" y="22" font-size="15">%s</text>`+"\n", escaped(title))
	x := 10
	for i, part := range parts {
		fmt.Fprintf(out, `<rect x="%d" y="34" width="11" height="11" fill="%s"/><text x="%d" y="44">%s</text>`+"\n", x, colour(i), x+16, escaped(part))
		x += 30 + 7*len(part)
	}
}

// row draws one group from y on.
func (c Chart) row(out *strings.Builder, row Row, y int) {
	fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", label-8, y+11, escaped(row.Label))
	if !c.Stacked {
		for i, v := range row.Values {
			c.rect(out, i, label, y+i*bar, v)
			fmt.Fprintf(out, `<text x="%.1f" y="%d">%s</text>`+"\n", label+c.length(v)+4, y+i*bar+11, short(v))
		}
		return
	}
	x, sum := float64(label), 0.0
	for i, v := range row.Values {
		if math.IsNaN(v) {
			continue
		}
		c.rect(out, i, x, y, v)
		x += c.length(v)
		sum += v
	}
	fmt.Fprintf(out, `<text x="%.1f" y="%d">%s</text>`+"\n", x+4, y+11, short(sum))
}

func (c Chart) rect(out *strings.Builder, part int, x float64, y int, v float64) {
	if w := c.length(v); w > 0 {
		fmt.Fprintf(out, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", x, y, w, bar-2, colour(part))
	}
}

// length is how long a value's bar is.
func (c Chart) length(v float64) float64 {
	most, least := c.bounds()
	if math.IsNaN(v) || v <= 0 || most <= 0 {
		return 0
	}
	const room = width - label - margin
	if !c.Log {
		return room * v / most
	}
	decades := math.Log10(most) - math.Floor(math.Log10(least))
	if decades <= 0 {
		return room
	}
	return room * (math.Log10(v) - math.Floor(math.Log10(least))) / decades
}

// bounds are the longest row and the least value that is drawn.
func (c Chart) bounds() (most, least float64) {
	least = math.Inf(1)
	for _, row := range c.Rows {
		sum := 0.0
		for _, v := range row.Values {
			if math.IsNaN(v) || v <= 0 {
				continue
			}
			sum += v
			least = min(least, v)
			most = max(most, v)
		}
		if c.Stacked {
			most = max(most, sum)
		}
	}
	return most, least
}

func colour(part int) string { return colours[part%len(colours)] }

func escaped(text string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(text)) // a strings.Builder takes everything
	return out.String()
}

// Charts draws what the results have, by the names of the files.
func Charts(r *Results) map[string]string {
	charts := make(map[string]string)
	for _, workload := range []string{Single, Bulk, Mixed, Large, Hogs} {
		if len(r.Sides(workload)) == 0 {
			continue
		}
		rates := Chart{Title: titles[workload], Unit: "events/s, median", Parts: []string{"events/s"}}
		costs := Chart{Title: titles[workload], Unit: "CPU in µs an event", Parts: []string{"side", "backend", "broker"}, Stacked: true}
		for _, side := range r.Sides(workload) {
			rates.Rows = append(rates.Rows, Row{side, []float64{r.Median(workload, side, Rate)}})
			costs.Rows = append(costs.Rows, Row{side, []float64{r.Median(workload, side, Own), r.cpu(workload, side, "backend"), r.cpu(workload, side, "broker")}})
		}
		charts[workload+"-rate.svg"], charts[workload+"-cpu.svg"] = rates.SVG(), costs.SVG()
	}
	for _, workload := range []string{Trickle, Steady} {
		if len(r.Sides(workload)) == 0 {
			continue
		}
		times := Chart{Title: titles[workload], Unit: "ms from commit to consumer, logarithmic scale", Parts: []string{"p50", "p99"}, Log: true}
		for _, side := range r.Sides(workload) {
			p50, p99 := r.Median(workload, side, P50), r.Median(workload, side, P99)
			times.Rows = append(times.Rows, Row{side, []float64{p50, p99}})
		}
		charts[workload+"-latency.svg"] = times.SVG()
	}
	for _, workload := range Curves {
		if len(r.Sides(workload)) > 0 {
			maps.Copy(charts, curve{r, workload}.plots())
		}
	}
	return charts
}
