package report

import (
	"fmt"
	"math"
	"strings"
)

// Plot is a chart of lines over points at a logarithmic scale, upwards from 0.
type Plot struct {
	Title  string
	Unit   string // upwards
	Axis   string // what the points are
	Points []int  // above 0, in ascending order
	Lines  []Row  // with a value for each point; one that is not a number has none
}

// Measures of a plot, in pixels; its width is that of a [Chart].
const (
	plotLeft   = 70
	plotRight  = width - 40
	plotTop    = 62
	plotBottom = 300
	plotHeight = 345
	plotSteps  = 4 // lines of the scale above 0
)

// SVG draws the plot.
func (c Plot) SVG() string {
	names := make([]string, len(c.Lines))
	for i, line := range c.Lines {
		names[i] = line.Label
	}
	var out strings.Builder
	begin(&out, plotHeight, c.Title+", "+c.Unit, names)
	step := c.step()
	for i := range plotSteps + 1 {
		y := c.y(step*float64(i), step)
		fmt.Fprintf(&out, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#cccccc"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n",
			plotLeft, y, plotRight, y, plotLeft-8, y+4, step*float64(i))
	}
	for _, point := range c.Points {
		fmt.Fprintf(&out, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", c.x(point), plotBottom+18, amount(point))
	}
	fmt.Fprintf(&out, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (plotLeft+plotRight)/2, plotBottom+37, escaped(c.Axis))
	for i, line := range c.Lines {
		var path strings.Builder
		for j, v := range line.Values {
			if math.IsNaN(v) {
				continue
			}
			x, y := c.x(c.Points[j]), c.y(v, step)
			fmt.Fprintf(&path, "%.1f,%.1f ", x, y)
			fmt.Fprintf(&out, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`+"\n", x, y, colour(i))
		}
		fmt.Fprintf(&out, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.TrimSpace(path.String()), colour(i))
	}
	out.WriteString("</svg>\n")
	return out.String()
}

// x is where a point stands: equal factors have equal distances. One alone stands in the middle.
func (c Plot) x(point int) float64 {
	least, most := math.Log10(float64(c.Points[0])), math.Log10(float64(c.Points[len(c.Points)-1]))
	if most <= least {
		return (plotLeft + plotRight) / 2
	}
	const edge = 15 // so that the first name is beside the scale
	return plotLeft + edge + (plotRight-plotLeft-2*edge)*(math.Log10(float64(point))-least)/(most-least)
}

func (c Plot) y(v, step float64) float64 {
	return plotBottom - (plotBottom-plotTop)*v/(step*plotSteps)
}

// step is the distance of the scale's lines: 1, 2, 2.5 or 5 times a power of ten, so that the
// greatest value has room.
func (c Plot) step() float64 {
	most := 0.0
	for _, line := range c.Lines {
		for _, v := range line.Values {
			if !math.IsNaN(v) {
				most = max(most, v)
			}
		}
	}
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/plotSteps)))
	for _, times := range []float64{1, 2, 2.5, 5} {
		if power*times*plotSteps >= most {
			return power * times
		}
	}
	return power * 10
}
