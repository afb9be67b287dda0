package model

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/catalog"
)

// life of a supervisor: the part of `reprieve run` that talks to the store, with a child that
// commits a checkpoint per step and ends with 0 after the last.
type supervisor struct {
	x     *explorer
	id    string // claim
	given int
	node  events.Node
	dead  string // claim of the process before it on the same machine; it is known to be dead

	hold *catalog.Attempt
	n    int
}

func (u *supervisor) stage(name string, run func() outcome, args ...any) *stage {
	key := fmt.Sprintf("%s/%s/%d/%s/%s/%d", name, u.id, u.given, u.node.Instance, u.dead, u.n)
	for _, a := range args {
		text, err := json.Marshal(a)
		if err != nil {
			panic(err)
		}
		key += "/" + string(text)
	}
	return &stage{key: key, run: func(*port) outcome { return run() }, dead: u.dead}
}

func (u *supervisor) start(tries int) *stage {
	return u.stage("start", func() outcome {
		x, ctx := u.x, context.Background()
		c := x.catalog
		if x.scenario.Notices != nil {
			if err := c.Register(ctx, u.node, "j"); err != nil {
				return outcome{what: "cannot register: " + err.Error()}
			}
			if n, err := c.OpenStop(ctx, u.node); err == nil && n != nil {
				return outcome{what: "exits 75: the machine goes away"}
			}
		}
		s := catalog.Start{
			Job: "j", Attempt: u.given, UID: "uid", Restarter: x.scenario.Restarter, Lease: lease,
			Claim: handlers.Claim{ID: u.id, Node: u.node, Host: u.node.Instance, At: t0},
			Dead:  func(c handlers.Claim) bool { return c.ID == u.dead },
		}
		if x.scenario.Restarter == handlers.RestarterReprieve {
			s.Launch = &handlers.Launch{Kind: "local"}
		}
		hold, job, err := c.TryStart(ctx, s)
		switch {
		case err == nil:
			next := *u
			next.hold, next.n = hold, hold.Number()
			return outcome{next: next.restore(0), holds: hold.Number(), what: fmt.Sprintf("holds attempt %d (%s)", hold.Number(), job.State)}
		case tries > 0 && !errors.Is(err, handlers.ErrEnded):
			x.port.do(op{verb: pause})
			return outcome{next: u.start(tries - 1), what: "waits: " + err.Error()}
		}
		return outcome{what: "exits 73: " + err.Error()}
	}, tries)
}

// trained is the state of the model after some steps: it names every checkpoint on its way.
type trained string

func (t trained) step(attempt int, step int64) trained {
	return trained(strings.TrimPrefix(fmt.Sprintf("%s,%d-%d", t, attempt, step), ","))
}

func (u *supervisor) restore(tries int) *stage {
	return u.stage("restore", func() outcome {
		ctx := context.Background()
		candidates, found, err := u.hold.Candidates(ctx)
		if err != nil {
			return u.again(err, tries, u.restore)
		}
		base := sealing{found: found}
		state := trained("")
		for _, c := range candidates {
			data, err := u.verify(ctx, c)
			if err == nil && u.x.port.do(op{verb: choose, key: "does " + c.String() + " verify?"}).number == 0 {
				base.base, state = &c.Ref, trained(data)
				break
			}
			if err != nil && handlers.Class(err) == handlers.ErrUnavailable {
				return u.again(err, tries, u.restore)
			}
			if err != nil {
				panic(violation{fmt.Sprintf("%s offers checkpoint %s, which is not whole: %v", u.id, c.Ref, err)})
			}
			base.rotten = append(base.rotten, c.Ref)
		}
		return outcome{next: u.seal(base, state, 0)}
	}, tries)
}

// again repeats a stage after a store's failure, a few times.
func (u *supervisor) again(err error, tries int, stage func(int) *stage) outcome {
	class := handlers.Class(err)
	if (class == handlers.ErrUnavailable || class == handlers.ErrConflict) && tries < 2 {
		return outcome{next: stage(tries + 1), what: "tries again: " + err.Error()}
	}
	return outcome{what: "exits: " + err.Error()}
}

func (u *supervisor) verify(ctx context.Context, c handlers.Checkpoint) ([]byte, error) {
	m, err := u.x.catalog.Manifest(ctx, "j", c.Ref)
	if err != nil {
		return nil, err
	}
	data, _, err := blob.ReadAll(ctx, u.x.catalog.Store, catalog.DataKey(c.Key, m.Files[0]))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != m.Files[0].SHA256 {
		return nil, fmt.Errorf("%w: checkpoint %s", handlers.ErrRotten, c.Ref)
	}
	return data, nil
}

func (u *supervisor) seal(base sealing, state trained, tries int) *stage {
	s := u.stage("seal", func() outcome {
		if _, err := u.hold.Seal(context.Background(), base.base, base.found); err != nil {
			return u.again(err, tries, func(tries int) *stage { return u.seal(base, state, tries) })
		}
		step := int64(0)
		from := "nothing"
		if base.base != nil {
			step, from = base.base.Step, base.base.String()
		}
		return outcome{next: u.train(base.base, state, step, false), what: "goes on from " + from}
	}, tries, base.base, base.found, base.rotten, state)
	s.seal = &base
	return s
}

// train makes one step and commits it. behind says that the step before did not become durable.
func (u *supervisor) train(base *handlers.Ref, state trained, step int64, behind bool) *stage {
	return u.stage("train", func() outcome {
		if step >= u.x.scenario.Steps {
			return outcome{next: u.end(u.x.port.do(op{verb: choose, key: questionFail}).number, 0)}
		}
		step := step + 1
		state := state.step(u.n, step)
		c, err := u.hold.Commit(context.Background(), handlers.Manifest{Step: step, Base: base, Unit: "model"},
			func(ctx context.Context, prefix string) ([]handlers.File, error) {
				sum := sha256.Sum256([]byte(state))
				_, err := blob.PutBytes(ctx, u.x.catalog.Store, prefix+"/model", []byte(state), blob.Cond{})
				return []handlers.File{{Path: "model", Size: int64(len(state)), SHA256: hex.EncodeToString(sum[:])}}, err
			})
		switch {
		case err == nil:
			return outcome{next: u.beat(base, state, step), durable: &c.Ref, what: c.String() + " is durable"}
		case errors.Is(err, handlers.ErrSuperseded):
			return outcome{what: "superseded: exits 73"}
		case handlers.Class(err) != handlers.ErrUnavailable && handlers.Class(err) != handlers.ErrConflict:
			panic(violation{fmt.Sprintf("%s cannot commit %d-%d: %v", u.id, u.n, step, err)})
		case behind:
			return outcome{what: "gives up: " + err.Error()}
		}
		// The trainer goes on; the saver has the next state to save soon.
		return outcome{next: u.train(base, state, step, true), what: fmt.Sprintf("%d-%d is not durable: %v", u.n, step, err)}
	}, base, state, step, behind)
}

func (u *supervisor) beat(base *handlers.Ref, state trained, step int64) *stage {
	return u.stage("beat", func() outcome {
		job, err := u.hold.Beat(context.Background())
		if errors.Is(err, handlers.ErrSuperseded) {
			return outcome{what: "superseded: exits 73"}
		}
		if err == nil && job.State == handlers.Preempting {
			return outcome{next: u.interrupt(string(job.Notice.Kind), 0), current: true, what: "hears of a notice"}
		}
		if u.x.port.do(op{verb: choose, key: questionLeave}).number == 1 {
			return outcome{next: u.hear(0), current: err == nil, what: "hears a notice"}
		}
		return outcome{next: u.train(base, state, step, false), current: err == nil}
	}, base, state, step)
}

// hear writes down a notice that came to the machine itself, and hands over.
func (u *supervisor) hear(tries int) *stage {
	return u.stage("hear", func() outcome {
		if _, err := u.hold.Notice(context.Background(), about(u.node, events.KindTerminate, false)); err != nil {
			return u.again(err, tries, u.hear)
		}
		return outcome{next: u.interrupt(string(events.KindTerminate), 0)}
	}, tries)
}

func (u *supervisor) interrupt(cause string, tries int) *stage {
	return u.stage("interrupt", func() outcome {
		job, err := u.hold.Interrupt(context.Background(), cause, "")
		if err != nil {
			return u.again(err, tries, func(n int) *stage { return u.interrupt(cause, n) })
		}
		return outcome{next: u.exit(job, 75), what: "handed over"}
	}, cause, tries)
}

func (u *supervisor) end(exit, tries int) *stage {
	return u.stage("end", func() outcome {
		job, err := u.hold.End(context.Background(), exit, "")
		if err != nil {
			return u.again(err, tries, func(n int) *stage { return u.end(exit, n) })
		}
		return outcome{next: u.exit(job, exit), what: "the job is " + string(job.State)}
	}, exit, tries)
}

// exit tells what is in the outbox, where there is a bus.
func (u *supervisor) exit(job handlers.Job, code int) *stage {
	if u.x.scenario.Mute {
		job.Outbox = nil
	}
	return u.x.tell(job.Outbox, outcome{what: fmt.Sprintf("exits %d", code)})
}

// tell publishes evs and settles them, as the runner and the supervisor do; then the process ends as last says.
func (x *explorer) tell(evs []events.Event, last outcome) *stage {
	if len(evs) == 0 {
		return &stage{key: "done/" + last.what, run: func(*port) outcome { return last }}
	}
	ids := ""
	for _, e := range evs {
		ids += e.ID() + " "
	}
	settle := &stage{key: "settle/" + ids + last.what, run: func(*port) outcome {
		out := last
		out.nak = x.catalog.Published(context.Background(), evs) != nil
		return out
	}}
	return &stage{key: "tell/" + ids + last.what, run: func(p *port) outcome {
		if p.do(op{verb: publish, events: evs}).code != ok {
			return outcome{nak: true}
		}
		return outcome{next: settle}
	}}
}

// handle is a runner's work on one event.
func (x *explorer) handle(name string, e events.Event, h func(context.Context, events.Event) ([]events.Event, error)) *stage {
	return &stage{key: name + "/" + e.ID(), run: func(*port) outcome {
		for range 5 {
			out, err := h(context.Background(), e)
			switch handlers.Class(err) {
			case nil, handlers.ErrIgnored:
				what := "acks"
				if err != nil {
					what = "ignores: " + err.Error()
				}
				return outcome{next: x.tell(out, outcome{what: what})}
			case handlers.ErrConflict:
				continue
			case handlers.ErrUnavailable:
				return outcome{nak: true, what: "naks: " + err.Error()}
			default:
				panic(violation{fmt.Sprintf("%s refuses %s: %v", name, e.Type(), err)})
			}
		}
		return outcome{nak: true, what: "naks"}
	}}
}

func (x *explorer) consumer(slot int, e events.Event) *stage {
	r := remote{x}
	if x.slots[slot].kind == noticer {
		return x.handle("notice", e, (&handlers.Notice{Jobs: x.catalog, Nodes: x.catalog, Now: r.now}).Handle)
	}
	return x.handle("resume", e, (&handlers.Resume{Jobs: x.catalog, Launcher: r, Now: r.now}).Handle)
}

func (x *explorer) watch() *stage {
	r := remote{x}
	w := &handlers.Watch{Jobs: x.catalog, Traces: x.catalog, Launcher: r, Lease: lease, Launch: launchDeadline, Now: r.now}
	return x.handle("watch", events.Event{}, w.Handle)
}

// person is somebody at a shell.
func (x *explorer) person(will fault) *stage {
	return &stage{key: fmt.Sprint("person/", will), run: func(*port) outcome {
		job, err := x.catalog.Update(context.Background(), "j", func(j handlers.Job) (handlers.Job, error) {
			if will == cancels {
				return j.Cancel("", t0)
			}
			return j.Retry(t0)
		})
		if err != nil {
			return outcome{what: "is told: " + err.Error()}
		}
		return outcome{what: fmt.Sprintf("made it %s, attempt %d", job.State, job.Attempt)}
	}}
}

// submit creates a job that waits for its launch.
func (x *explorer) submit() *stage {
	return &stage{key: "submit", run: func(*port) outcome {
		job := handlers.NewJob("j", "uid", handlers.RestarterReprieve, &handlers.Launch{Kind: "local"}, t0)
		if err := x.catalog.Create(context.Background(), job); err != nil {
			return outcome{what: err.Error()}
		}
		if err := (remote{x}).Launch(context.Background(), job); err != nil {
			return outcome{what: err.Error()}
		}
		return outcome{what: "submitted"}
	}}
}

// lineage is the checkpoints that a stored state of training has behind it.
func lineage(state string) []string {
	if state == "" {
		return nil
	}
	return strings.Split(state, ",")
}

// related reports whether one of two states of training goes on from the other.
func related(a, b string) bool {
	x, y := lineage(a), lineage(b)
	n := min(len(x), len(y))
	return slices.Equal(x[:n], y[:n])
}
