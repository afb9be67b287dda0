package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// textHandler writes log records for people: time, level where it matters, message, pairs.
type textHandler struct {
	mu     *sync.Mutex
	out    io.Writer
	level  slog.Level
	colour bool
	attrs  string
}

func newTextHandler(out io.Writer, level slog.Level, colour bool) slog.Handler {
	return &textHandler{mu: &sync.Mutex{}, out: out, level: level, colour: colour}
}

func (h *textHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

func (h *textHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	mark, colour := "", ""
	switch {
	case r.Level >= slog.LevelError:
		mark, colour = "ERROR ", "\x1b[31m"
	case r.Level >= slog.LevelWarn:
		mark, colour = "WARN  ", "\x1b[33m"
	}
	fmt.Fprintf(&b, "%s reprieve: %s%s", r.Time.Format("15:04:05.000"), mark, r.Message)
	b.WriteString(h.attrs)
	r.Attrs(func(a slog.Attr) bool { b.WriteString(pair(a)); return true })
	line := b.String()
	if h.colour && colour != "" {
		line = colour + line + "\x1b[0m"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.out, line+"\n")
	return err
}

func (h *textHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	for _, a := range attrs {
		c.attrs += pair(a)
	}
	return &c
}

func (h *textHandler) WithGroup(string) slog.Handler { return h }

func pair(a slog.Attr) string {
	value := a.Value.String()
	if value == "" || strings.ContainsAny(value, " \t\n\"=") {
		value = fmt.Sprintf("%q", value)
	}
	return " " + a.Key + "=" + value
}

// table aligns rows under a header.
func table(header string, rows func(add func(cells ...any))) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, header)
	rows(func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	})
	_ = w.Flush()
	return b.String()
}

// size is bytes for people, in powers of 1000 as disks are sold.
func size(n int64) string {
	f, unit := float64(n), "B"
	for _, u := range []string{"kB", "MB", "GB", "TB", "PB"} {
		if f < 1000 {
			break
		}
		f, unit = f/1000, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return time.Since(t).Round(time.Second).String() + " ago"
}
