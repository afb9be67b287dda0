// Command trainer trains a small network on handwritten digits, deterministically: the same seed
// gives the same model, bit for bit, however often the training is interrupted and resumed. It shows
// what a program does to survive preemption with `reprieve run`, and is what the demo preempts. It is
// no framework: everything it does for that is in ask.go and checkpoint.go, to be copied.
//
// It exits 0 when it has finished, or has saved and stopped as it was asked to; 1 on a failure; 2
// when it is called wrongly; 3 when the checkpoint to resume from is bad.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"
)

const (
	exitFailure       = 1
	exitUsage         = 2
	exitBadCheckpoint = 3
)

type options struct {
	dir, out             string
	steps, every, failAt int64
	stepTime             time.Duration
	seed                 uint64
	keep, padMB          int
	ask, onTerm          string
	quiet                bool
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", cmp.Or(os.Getenv("REPRIEVE_CHECKPOINT_DIR"), "checkpoints"), "where checkpoints go")
	flag.StringVar(&o.out, "out", "", "write the final model here")
	flag.Int64Var(&o.steps, "steps", 3000, "train so many steps")
	flag.Int64Var(&o.every, "every", 250, "checkpoint every so many steps")
	flag.Int64Var(&o.failAt, "fail-at", 0, "exit 1 before this step, unless resumed (0: do not)")
	flag.DurationVar(&o.stepTime, "step-time", 0, "how long a step takes at least")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of everything random")
	flag.IntVar(&o.keep, "keep", 3, "keep so many checkpoints")
	flag.IntVar(&o.padMB, "pad-mb", 0, "make checkpoints larger by so many MiB")
	flag.StringVar(&o.ask, "ask", "both", "how a checkpoint is asked for: socket (REPRIEVE_SOCKET), signal (SIGUSR1), both, or none")
	flag.StringVar(&o.onTerm, "on-term", "save", "on SIGTERM: save (and exit 0), exit (at once), or ignore")
	flag.BoolVar(&o.quiet, "quiet", false, "print the last line only")
	flag.Parse()
	if err := o.validate(); err != nil {
		fmt.Fprintln(os.Stderr, "trainer:", err)
		os.Exit(exitUsage)
	}
	code, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "trainer:", err)
	}
	os.Exit(code)
}

func (o options) validate() error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("%q is no flag: the trainer takes flags only", flag.Arg(0))
	case o.steps < 1 || o.every < 1 || o.keep < 1:
		return errors.New("-steps, -every and -keep take numbers from 1 on")
	case o.failAt < 0 || o.padMB < 0 || o.stepTime < 0:
		return errors.New("-fail-at, -pad-mb and -step-time cannot be negative")
	case !slices.Contains([]string{"both", "socket", "signal", "none"}, o.ask):
		return fmt.Errorf("-ask is %q: use socket, signal, both or none", o.ask)
	case !slices.Contains([]string{"save", "exit", "ignore"}, o.onTerm):
		return fmt.Errorf("-on-term is %q: use save, exit or ignore", o.onTerm)
	}
	return nil
}

func run(o options) (int, error) {
	// First of all: a request that comes while the data is loaded is not lost.
	reprieve := newSupervisor(os.Getenv("REPRIEVE_SOCKET"), o.ask, o.onTerm)
	defer reprieve.close()
	images, test, err := load()
	if err != nil {
		return exitFailure, err
	}
	s, from, err := begin(o, len(images))
	if errors.Is(err, errCheckpoint) {
		return exitBadCheckpoint, err
	} else if err != nil {
		return exitFailure, err
	}
	if from != "" {
		o.say("resumed from step %d (%s)", s.Step, from)
	}
	var said, told time.Time
	for s.Step < o.steps {
		if s.Step == o.failAt-1 && from == "" {
			return exitFailure, fmt.Errorf("failing before step %d, as told", o.failAt)
		}
		started, epoch := time.Now(), s.Epoch
		loss := s.train(images)
		if s.Epoch > epoch || started.Sub(said) >= time.Second {
			said = started
			o.say("step %d  epoch %d  loss %.4f  accuracy %.1f%%", s.Step, s.Epoch, loss, 100*accuracy(s.Weights, test))
		}
		if started.Sub(told) >= time.Second {
			told = started
			reprieve.tell("/progress", map[string]any{"step": s.Step, "epoch": s.Epoch, "samples": s.Step * batch, "loss": loss})
		}
		wanted, stop := reprieve.next(o.stepTime - time.Since(started))
		if wanted || s.Step%o.every == 0 || s.Step == o.steps {
			saving := time.Now()
			path, err := save(s, o.dir, o.keep, o.padMB)
			if err != nil {
				return exitFailure, fmt.Errorf("save step %d: %w", s.Step, err)
			}
			reprieve.tell("/saved", map[string]any{"path": path, "step": s.Step})
			o.say("saved step %d in %d ms", s.Step, time.Since(saving).Milliseconds())
		}
		if stop && s.Step < o.steps {
			o.say("stopped at step %d, as asked", s.Step)
			return 0, nil
		}
	}
	hash, err := writeModel(s, o.out)
	if err != nil {
		return exitFailure, fmt.Errorf("write the model: %w", err)
	}
	fmt.Printf("accuracy %.1f%% after %d steps, model sha256 %x\n", 100*accuracy(s.Weights, test), s.Step, hash)
	reprieve.tell("/done", struct{}{})
	return 0, nil
}

func (o options) say(format string, args ...any) {
	if !o.quiet {
		fmt.Printf(format+"\n", args...)
	}
}

// begin returns the state to go on from, and where it comes from: what the supervisor restored, else
// the newest checkpoint in the directory, else nothing. It never goes on from less than it should.
func begin(o options, images int) (s *state, from string, err error) {
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return nil, "", err
	}
	if err := removeTemporary(o.dir); err != nil {
		return nil, "", err
	}
	if os.Getenv("REPRIEVE_RESUMED") == "1" {
		if from = os.Getenv("REPRIEVE_RESUME_PATH"); from == "" {
			return nil, "", fmt.Errorf("%w: REPRIEVE_RESUMED is 1, so set REPRIEVE_RESUME_PATH to the checkpoint to resume from", errCheckpoint)
		}
	} else if own, err := checkpoints(o.dir); err != nil {
		return nil, "", err
	} else if len(own) > 0 {
		from = own[len(own)-1]
	}
	if from == "" {
		return newState(o.seed, images), "", nil
	}
	s, err = restore(from, images)
	return s, from, err
}
