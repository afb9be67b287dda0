// Command required reads what `go test -json` prints, prints it for people (a line a package, and all
// that failed tests said), and fails if a test failed or was skipped, or if one of a list did not run.
//
//	go test -json ./... | required LIST
//
// LIST has a package, relative to the main module, and the name of a test on each line. Input that is
// no JSON is passed through, so that several commands may write to the pipe.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

const module = "github.com/reprieve-dev/reprieve/"

// event is one line of `go test -json`. Source: `go doc test2json`, `go help buildjson`.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// name is how LIST names a test.
type name struct{ pkg, test string }

func (n name) String() string { return n.pkg + " " + n.test }

type results struct {
	out      io.Writer
	running  map[name]*strings.Builder // what tests that have not ended said
	passed   map[name]bool
	failed   []name
	skipped  []name
	packages int // that failed, be it to build
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json ./... | required LIST")
		os.Exit(64)
	}
	list, err := os.ReadFile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(64)
	}
	r := results{out: os.Stdout, running: map[name]*strings.Builder{}, passed: map[name]bool{}}
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "read the output of go test:", err)
		os.Exit(1)
	}
	if !r.conclude(string(list)) {
		os.Exit(1)
	}
}

func (r *results) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
			r.add(e)
		} else {
			r.print(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *results) print(s string) { _, _ = io.WriteString(r.out, s) }

func (r *results) add(e event) {
	n := name{strings.TrimPrefix(e.Package, module), e.Test}
	if e.Test == "" {
		r.addPackage(n.pkg, e)
		return
	}
	switch e.Action {
	case "run":
		r.running[n] = &strings.Builder{}
	case "output":
		if said := r.running[n]; said != nil {
			said.WriteString(e.Output)
		}
	case "pass":
		r.passed[n] = true
		delete(r.running, n)
	case "fail":
		r.failed = append(r.failed, n)
		r.tell(n)
	case "skip":
		r.skipped = append(r.skipped, n)
		delete(r.running, n)
	}
}

// addPackage takes what is not about one test.
func (r *results) addPackage(pkg string, e event) {
	switch e.Action {
	case "output", "build-output":
		if e.Output != "PASS\n" && !strings.HasPrefix(e.Output, "?   \t") {
			r.print(e.Output)
		}
	case "fail":
		r.packages++
		for n := range r.running { // a panic or a timeout ended them
			if n.pkg == pkg {
				r.failed = append(r.failed, n)
				r.tell(n)
			}
		}
	}
}

// tell prints what a test said and forgets it.
func (r *results) tell(n name) {
	if said := r.running[n]; said != nil {
		r.print(said.String())
	}
	delete(r.running, n)
}

// conclude prints the sums and whatever is wrong, and reports whether nothing is.
func (r *results) conclude(list string) bool {
	for n := range r.running {
		r.failed = append(r.failed, n)
		r.print("did not end: " + n.String() + "\n")
	}
	var missing []name
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		n := name{fields[0], strings.Join(fields[1:], " ")}
		if !r.passed[n] && !slices.Contains(r.failed, n) && !slices.Contains(r.skipped, n) {
			missing = append(missing, n)
		}
	}
	for _, n := range r.failed {
		r.print("failed: " + n.String() + "\n")
	}
	for _, n := range r.skipped {
		r.print("skipped, which no test may be: " + n.String() + "\n")
	}
	for _, n := range missing {
		r.print("required, but did not run: " + n.String() + "\n")
	}
	r.print(fmt.Sprintf("%d tests passed, %d failed, %d skipped, %d required ones missing\n", len(r.passed), len(r.failed), len(r.skipped), len(missing)))
	return len(r.failed)+len(r.skipped)+len(missing)+r.packages == 0 && len(r.passed) > 0
}
