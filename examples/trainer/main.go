// Command trainer trains a small network on handwritten digits, deterministically: the same seed
// gives the same model, bit for bit, however often the training is interrupted and resumed. It shows
// what a program does to survive preemption with `reprieve run`, and is what the demo preempts.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
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
	pace                 time.Duration
	seed                 uint64
	keep                 int
	onTerm               string
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", firstOf(os.Getenv("REPRIEVE_CHECKPOINT_DIR"), "checkpoints"), "where checkpoints go")
	flag.StringVar(&o.out, "out", "", "write the final model here")
	flag.Int64Var(&o.steps, "steps", 3000, "train so many steps")
	flag.Int64Var(&o.every, "every", 250, "checkpoint every so many steps")
	flag.Int64Var(&o.failAt, "fail-at", 0, "exit 1 before this step, unless resumed")
	flag.DurationVar(&o.pace, "step-time", 0, "how long a step takes at least")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of everything random")
	flag.IntVar(&o.keep, "keep", 3, "keep so many checkpoints")
	flag.StringVar(&o.onTerm, "on-term", "save", "on SIGTERM: save (and exit 0), exit, or ignore")
	flag.Parse()
	if flag.NArg() > 0 || o.steps < 1 || o.every < 1 || o.keep < 1 {
		fmt.Fprintln(os.Stderr, "trainer: -steps, -every and -keep take numbers from 1 on, and there are no arguments")
		os.Exit(exitUsage)
	}
	code, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "trainer:", err)
	}
	os.Exit(code)
}

func run(o options) (int, error) {
	images, test, err := load()
	if err != nil {
		return exitFailure, err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return exitFailure, err
	}
	s, from, err := begin(o, len(images))
	if err != nil {
		return exitBadCheckpoint, err
	}
	if from != "" {
		fmt.Printf("resumed from step %d (%s)\n", s.Step, from)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	reprieve := newSupervisor(os.Getenv("REPRIEVE_SOCKET"))
	go reprieve.listen(ctx)
	asked := make(chan os.Signal, 8)
	signal.Notify(asked, syscall.SIGUSR1)
	switch o.onTerm {
	case "save":
		signal.Notify(asked, syscall.SIGTERM)
	case "ignore":
		signal.Ignore(syscall.SIGTERM)
	}

	saved := s.Step
	checkpoint := func() error {
		if saved == s.Step && s.Step > 0 {
			return nil
		}
		started := time.Now()
		path, err := save(s, o.dir, o.keep)
		if err != nil {
			return err
		}
		saved = s.Step
		reprieve.tell("/saved", map[string]any{"path": path, "step": s.Step})
		fmt.Printf("saved step %d in %d ms\n", s.Step, time.Since(started).Milliseconds())
		return nil
	}
	said := time.Now()
	for s.Step < o.steps {
		if s.Step == o.failAt-1 && from == "" {
			return exitFailure, fmt.Errorf("failing before step %d, as told", o.failAt)
		}
		started := time.Now()
		loss := s.train(images)
		if time.Since(said) > 250*time.Millisecond {
			said = time.Now()
			fmt.Printf("step %d  epoch %d  loss %.4f  accuracy %.1f%%\n", s.Step, s.Epoch, loss, 100*accuracy(s.Weights, test))
			reprieve.tell("/progress", map[string]any{"step": s.Step, "epoch": s.Epoch, "samples": s.Step * batch, "loss": loss})
		}
		stop, now := false, s.Step%o.every == 0 || s.Step == o.steps
		select {
		case stop = <-reprieve.wanted:
			now = true
		case sig := <-asked:
			stop, now = sig == syscall.SIGTERM, true
		case <-time.After(o.pace - time.Since(started)):
		}
		if now {
			if err := checkpoint(); err != nil {
				return exitFailure, err
			}
		}
		if stop && s.Step < o.steps {
			fmt.Printf("stopped at step %d, as asked\n", s.Step)
			return 0, nil
		}
	}
	return finish(o, s, accuracy(s.Weights, test), reprieve)
}

// begin returns the state to go on from, and where it comes from: what the supervisor restored, else
// the newest checkpoint in the directory, else nothing.
func begin(o options, images int) (s *state, from string, err error) {
	if os.Getenv("REPRIEVE_RESUMED") == "1" {
		from = os.Getenv("REPRIEVE_RESUME_PATH")
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

func finish(o options, s *state, score float64, reprieve *supervisor) (int, error) {
	hash := sha256.New()
	write := func(w io.Writer) error {
		return binary.Write(io.MultiWriter(w, hash), binary.LittleEndian, s.Weights)
	}
	var err error
	if o.out == "" {
		err = write(io.Discard)
	} else {
		err = errors.Join(os.MkdirAll(filepath.Dir(o.out), 0o755), writeFile(o.out, write))
	}
	if err != nil {
		return exitFailure, err
	}
	fmt.Printf("accuracy %.1f%% after %d steps, model sha256 %x\n", 100*score, s.Step, hash.Sum(nil))
	reprieve.tell("/done", struct{}{})
	return 0, nil
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
