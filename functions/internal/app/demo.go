package app

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
	"github.com/reprieve-dev/reprieve/infra/launch/local"
	"github.com/reprieve-dev/reprieve/infra/metadata"
)

// Demo is `reprieve demo`: a real training job on two nodes of this machine, the first of which is
// taken away.
type Demo struct {
	Self    string // this program
	Trainer string // examples/trainer, built
	Out     io.Writer
	Colour  bool
	Keep    bool
	Log     *slog.Logger

	dir     string
	started time.Time
}

// DemoResult is what the demo proved.
type DemoResult struct {
	Identical         bool    `json:"identical"`  // the model is bit for bit that of an uninterrupted run
	StepsLost         int64   `json:"steps_lost"` // trained, but not in the checkpoint that was resumed from
	NoticeToDurableMS int64   `json:"notice_to_durable_ms"`
	NoticeToResumedS  float64 `json:"notice_to_resumed_s"`
	Attempts          int     `json:"attempts"`
}

const (
	demoJob    = "demo"
	demoSteps  = 4000
	demoWindow = 20 * time.Second // between the notice and the death of the node
	demoLimit  = 55 * time.Second
)

// Run plays the demo. The error says what was not proved.
func (d *Demo) Run(ctx context.Context) (result DemoResult, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, demoLimit, fmt.Errorf("%w: the demo took longer than %s", handlers.ErrUnavailable, demoLimit))
	defer cancel()
	d.started = time.Now()
	if d.dir, err = os.MkdirTemp("", "reprieve-demo-"); err != nil {
		return result, fmt.Errorf("%w: %w", handlers.ErrUnavailable, err)
	}
	if d.Keep {
		defer func() { d.say("", "everything is still in %s", d.dir) }()
	} else {
		defer func() { _ = os.RemoveAll(d.dir) }()
	}
	d.say("", "an uninterrupted run, to compare with: %d steps", demoSteps)
	want, err := d.uninterrupted(ctx)
	if err != nil {
		return result, err
	}

	settings := Settings{
		Store: "file://" + filepath.Join(d.dir, "store"), Bus: "nats+embedded://", StateDir: filepath.Join(d.dir, "state"),
		Lease: 5 * time.Second, Log: d.Log,
	}
	nodes := local.New(local.Config{Root: settings.LocalRoot(), Log: d.Log})
	up := make(chan Endpoints, 1)
	server := &Server{
		Settings: settings, Listen: "127.0.0.1:0", LaunchDeadline: 20 * time.Second, WatchInterval: 2 * time.Second,
		Up: func(e Endpoints) { up <- e },
	}
	ctx, stop := context.WithCancelCause(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer func() { stop(nil); _ = nodes.Kill(demoJob + "-1"); _ = nodes.Kill(demoJob + "-2") }()
	workers.Go(func() {
		if err := server.Run(ctx); err != nil {
			stop(err)
		}
	})
	var endpoints Endpoints
	select {
	case endpoints = <-up:
	case <-ctx.Done():
		return result, context.Cause(ctx)
	}
	d.say("", "control plane: NATS JetStream at %s, store %s", endpoints.Bus, settings.Store)

	first, firstURL, err := d.node(ctx, &workers, "i-0aaaaaaaaaaaaaaa1")
	if err != nil {
		return result, err
	}
	_, secondURL, err := d.node(ctx, &workers, "i-0bbbbbbbbbbbbbbb2")
	if err != nil {
		return result, err
	}
	follower := &follower{steps: make(chan progress, 1024)}
	workers.Go(func() { follower.run(ctx, filepath.Join(settings.LocalRoot(), demoJob+"-1", "output.log"), 1) })
	workers.Go(func() { follower.run(ctx, filepath.Join(settings.LocalRoot(), demoJob+"-2", "output.log"), 2) })
	settings.Bus = endpoints.Bus
	evs, err := d.subscribe(ctx, &workers, settings)
	if err != nil {
		return result, err
	}
	model := filepath.Join(d.dir, "model")
	if err := d.submit(ctx, settings, model, firstURL, secondURL); err != nil {
		return result, err
	}

	result, err = d.watch(ctx, evs, follower.steps, first, nodes)
	if err != nil {
		return result, err
	}
	got, err := os.ReadFile(model)
	if err != nil {
		return result, fmt.Errorf("%w: the job succeeded, but left no model: %w", handlers.ErrPermanent, err)
	}
	result.Identical = bytes.Equal(got, want)
	return result, d.verdict(result, len(want))
}

// uninterrupted trains once without anybody in the way and returns the model.
func (d *Demo) uninterrupted(ctx context.Context) ([]byte, error) {
	model := filepath.Join(d.dir, "uninterrupted")
	cmd := exec.CommandContext(ctx, d.Trainer, "-steps", strconv.Itoa(demoSteps), "-dir", filepath.Join(d.dir, "uninterrupted-checkpoints"), "-out", model)
	cmd.Env = append(os.Environ(), "REPRIEVE_RESUMED=0", "REPRIEVE_SOCKET=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: the trainer failed: %w: %s", handlers.ErrPermanent, err, out)
	}
	return os.ReadFile(model)
}

// node starts the stand-in metadata service of one machine.
func (d *Demo) node(ctx context.Context, workers *sync.WaitGroup, instance string) (*metadata.StandIn, string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", handlers.ErrUnavailable, err)
	}
	standIn := metadata.NewStandIn(instance)
	server := &http.Server{Handler: standIn, ReadHeaderTimeout: time.Second}
	workers.Go(func() { _ = server.Serve(listener) })
	workers.Go(func() { <-ctx.Done(); _ = server.Close() })
	return standIn, "http://" + listener.Addr().String(), nil
}

func (d *Demo) subscribe(ctx context.Context, workers *sync.WaitGroup, s Settings) (<-chan events.Event, error) {
	b, err := s.OpenBus(ctx)
	if err != nil {
		return nil, err
	}
	feed, err := b.Subscribe(ctx, bus.Subscription{Types: []string{bus.Any}})
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	out := make(chan events.Event, 64)
	workers.Go(func() {
		defer func() { _ = b.Close() }()
		for {
			m, err := feed.Next(ctx)
			if err != nil {
				return
			}
			if m.Err == nil {
				select {
				case out <- m.Event:
				case <-ctx.Done():
				}
			}
		}
	})
	return out, nil
}

// submit creates the job, whose two attempts run on the two nodes, and launches the first.
func (d *Demo) submit(ctx context.Context, s Settings, model, first, second string) error {
	c, uid, err := s.OpenCatalog(ctx)
	if err != nil {
		return err
	}
	spec := &handlers.Launch{Kind: "local", Template: map[string]any{
		"command": []any{
			d.Self, "run", "--job", "{{.Job}}", "--store", s.Store, "--bus", s.Bus, "--state-dir", s.StateDir, "--lease", s.Lease.String(),
			"--checkpoint-dir", "{{.Dir}}/checkpoints", "--provider", "aws",
			"--metadata-endpoint", "{{if eq .Attempt 1}}" + first + "{{else}}" + second + "{{end}}", "--log-format", "text",
			"--", d.Trainer, "-steps", strconv.Itoa(demoSteps), "-step-time", "2ms", "-every", "1000", "-out", model,
		},
	}}
	job := handlers.NewJob(demoJob, NewID(), handlers.RestarterReprieve, spec, time.Now())
	if err := c.Create(ctx, job); err != nil {
		return err
	}
	return s.Launchers(uid).Launch(ctx, job)
}

// watch shows what happens, sends the notice when the job is in the middle, and lets the node die
// once it has handed over.
func (d *Demo) watch(ctx context.Context, evs <-chan events.Event, steps <-chan progress, first *metadata.StandIn, nodes *local.Launcher) (DemoResult, error) {
	var result DemoResult
	var noticed time.Time
	var trained, resumed int64
	since := func(e events.Event) string { return fmt.Sprintf("+%.2f s", e.Time().Sub(noticed).Seconds()) }
	for {
		select {
		case <-ctx.Done():
			return result, context.Cause(ctx)
		case p := <-steps:
			d.progress(p)
			if p.attempt == 1 {
				trained = max(trained, p.step)
			}
			if noticed.IsZero() && p.step >= demoSteps*2/5 {
				noticed = time.Now()
				first.Interrupt("terminate", noticed.Add(demoWindow))
				d.say("33", "node 1: the metadata service announces its preemption in %s", demoWindow)
			}
		case e := <-evs:
			if e.Subject() != demoJob {
				continue
			}
			switch e.Type() {
			case events.TypeJobStarted:
				data, _ := events.Decode[events.Job](e)
				result.Attempts = data.Attempt
				d.say("36", "node %d: attempt %d is claimed", data.Attempt, data.Attempt)
			case events.TypeJobPreempting:
				d.say("33", "node 1: %s  notice heard, the trainer was asked for a checkpoint", since(e))
			case events.TypeCheckpointCommitted:
				data, _ := events.Decode[events.Checkpoint](e)
				if !noticed.IsZero() && result.NoticeToDurableMS == 0 && data.Attempt == 1 {
					result.NoticeToDurableMS = e.Time().Sub(noticed).Milliseconds()
					d.say("32", "node 1: %s  step %d is DURABLE (%d kB)", since(e), *data.Step, data.Bytes/1000)
				} else {
					d.say("", "node %d: step %d is durable (%d kB)", data.Attempt, *data.Step, data.Bytes/1000)
				}
			case events.TypeJobInterrupted:
				d.say("33", "node 1: %s  trainer stopped, handed over; now the machine dies: SIGKILL of everything on it", since(e))
				if err := nodes.Kill(demoJob + "-1"); err != nil {
					return result, err
				}
			case events.TypeJobResuming:
				d.say("36", "control plane: %s  attempt 2 is reserved and launched on a fresh node", since(e))
			case events.TypeJobResumed:
				data, _ := events.Decode[events.Job](e)
				resumed = *data.Step
				result.NoticeToResumedS = e.Time().Sub(noticed).Seconds()
				d.say("32", "node 2: %s  RESUMED from step %d, verified", since(e), resumed)
			case events.TypeJobSucceeded:
				result.StepsLost = max(0, trained-resumed)
				d.say("32", "node %d: the job has succeeded", result.Attempts)
				return result, nil
			case events.TypeJobFailed, events.TypeJobCancelled, events.TypeAlertRaised:
				return result, fmt.Errorf("%w: %s: %s", handlers.ErrPermanent, e.Type(), e.Data())
			}
		}
	}
}

// verdict prints the proof, and returns what is missing from it.
func (d *Demo) verdict(r DemoResult, size int) error {
	d.say("", "")
	d.say("1", "final model           %s (%d bytes)", map[bool]string{true: "bit for bit that of the uninterrupted run", false: "DIFFERS from the uninterrupted run"}[r.Identical], size)
	d.say("1", "steps lost            %d", r.StepsLost)
	d.say("1", "notice to durable     %d ms", r.NoticeToDurableMS)
	d.say("1", "notice to resumed     %.2f s", r.NoticeToResumedS)
	switch {
	case !r.Identical:
		return fmt.Errorf("%w: the model is not that of the uninterrupted run", handlers.ErrPermanent)
	case r.Attempts != 2:
		return fmt.Errorf("%w: the job took %d attempts instead of 2", handlers.ErrPermanent, r.Attempts)
	case r.NoticeToDurableMS <= 0 || r.NoticeToDurableMS > demoWindow.Milliseconds():
		return fmt.Errorf("%w: no checkpoint became durable in the window", handlers.ErrPermanent)
	}
	return nil
}

func (d *Demo) say(colour, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if text != "" {
		text = fmt.Sprintf("%6.2f  %s", time.Since(d.started).Seconds(), text)
	}
	if d.Colour && colour != "" {
		text = "\x1b[" + colour + "m" + text + "\x1b[0m"
	}
	fmt.Fprintln(d.Out, text)
}

func (d *Demo) progress(p progress) {
	const width = 40
	done := int(p.step * width / demoSteps)
	d.say("2", "node %d: [%s%s] %s", p.attempt, strings.Repeat("#", done), strings.Repeat(".", width-done), p.line)
}

// progress is a line of the trainer.
type progress struct {
	attempt int
	step    int64
	line    string
}

// follower reads what trainers print.
type follower struct{ steps chan progress }

var stepLine = regexp.MustCompile(`^(?:saved )?step (\d+)`)

func (f *follower) run(ctx context.Context, path string, attempt int) {
	var file *os.File
	for file == nil {
		var err error
		if file, err = os.Open(path); err != nil && !pause(ctx) {
			return
		}
	}
	defer func() { _ = file.Close() }()
	reader, line := bufio.NewReader(file), ""
	for {
		part, err := reader.ReadString('\n')
		line += part
		if errors.Is(err, io.EOF) {
			if !pause(ctx) {
				return
			}
			continue
		}
		if err != nil {
			return
		}
		if m := stepLine.FindStringSubmatch(line); m != nil {
			step, _ := strconv.ParseInt(m[1], 10, 64)
			select {
			case f.steps <- progress{attempt: attempt, step: step, line: strings.TrimSpace(line)}:
			case <-ctx.Done():
				return
			}
		}
		line = ""
	}
}

// pause waits a moment; false when ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(20 * time.Millisecond):
		return true
	}
}
