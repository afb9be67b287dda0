package model_test

import (
	"flag"
	"testing"

	"github.com/reprieve-dev/reprieve/test/model"
)

var limit = flag.Int("model.limit", 0, "states of a scenario at most; 0: all")

func TestModel(t *testing.T) {
	for _, sc := range model.Scenarios {
		t.Run(sc.Name, func(t *testing.T) {
			r := model.Explore(sc, *limit)
			t.Log(r)
			if r.Violation != "" {
				t.Fatalf("VIOLATION: %s", r.Violation)
			}
		})
	}
}
