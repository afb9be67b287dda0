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

const someStates = 5_000

// TestModel goes through everything that can happen in every scenario. What is checked, by the
// numbers of the protocol's rules (docs/protocol.md), in spec.go unless another file is named:
//
//	 1  checkOutcome: one holder for each attempt, also after a claim of unknown outcome; checkRecord:
//	    a claim is given once, to an unclaimed reservation
//	 2  checkRecord: nobody but a person leaves a terminal state, only its own claimant makes an
//	    interrupted attempt succeed; checkOutcome: whose heartbeat was accepted had read that it is current
//	 3  fair.go: whatever anybody leaves by dying, the job ends, and no live object or mark stays
//	 4  fair.go: reservations that nobody claims do not stop a job; checkRecord: only watch passes over
//	 5  checkRecord: nothing but a claim leads out of a reservation to running; fair.go: nobody waits for ever
//	 6  checkRecord: notices change only the attempt on their machine. Budgets: not here
//	 7  byMachines, byStarts: the changes of state that are legal
//	10  checkOutcome: what is reported durable is listed; checkList: lists grow by the current claimant, or a seal
//	11  checkPut: no manifest is overwritten by another; checkList: what is listed has a manifest
//	12  checkList: one seal an attempt, by its claimant; what was found up to the base is adopted;
//	    checkBase: nothing that was written after the seal, or cut by it, is ever restored or listed
//	13  checkBase: what was durable, and not rotten, is never passed over, by (attempt, step)
//	14  checkBase: only rot makes a fallback
//	22  the events here carry attempt and node: late ones change nothing (checkRecord)
//	23  checkRecord: no transition is made on top of another than the one it was decided on
//	24  owe, fair.go: what a transition has to tell is published in the end, and no mark stays
//	25  owe: the ids of job events are what the protocol says; SameNotice: not here
//
// Rules 8 and 15 are about several ranks, 9 is a lock on a directory.
func TestModel(t *testing.T) {
	limit, part := *most, slow || testing.Short()
	if limit == 0 && part {
		limit = someStates
	}
	for _, sc := range model.Scenarios {
		t.Run(sc.Name, func(t *testing.T) {
			t.Parallel()
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
