package model_test

import (
	"flag"
	"testing"

	"github.com/reprieve-dev/reprieve/test/model"
)

var (
	deep = flag.Bool("model.deep", false, "let more go wrong in one run")
	most = flag.Int("model.most", 0, "visit at most so many states of a scenario; 0: all")
)

// slow is whether the race detector is on: then only the first states of each scenario are visited.
var slow bool

const someStates = 20_000

// TestModel goes through everything that can happen in every scenario.
func TestModel(t *testing.T) {
	limit, part := *most, slow || testing.Short()
	if limit == 0 && part {
		limit = someStates
	}
	for _, sc := range model.Scenarios {
		t.Run(sc.Name, func(t *testing.T) {
			r := model.Explore(sc, *deep, limit)
			t.Log(r)
			if r.Violation != "" {
				t.Fatalf("VIOLATION: %s", r.Violation)
			}
			if limit == 0 && !r.Complete {
				t.Error("not everything was visited")
			}
		})
	}
}
