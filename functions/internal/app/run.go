package app

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/events/notice"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
	"github.com/reprieve-dev/reprieve/infra/catalog"
	"github.com/reprieve-dev/reprieve/infra/framework"
	"github.com/reprieve-dev/reprieve/infra/metadata"
	"github.com/reprieve-dev/reprieve/infra/supervise"
)

// RunOptions are the flags of `reprieve run`.
type RunOptions struct {
	Job              string
	Argv             []string
	Dir              string
	Framework        string
	Marker           string
	Trigger          string
	OnNotice         string // "", stop, keep
	Provider         string
	MetadataEndpoint string
	Grace            time.Duration
	Restarter        handlers.Restarter
	Launch           *handlers.Launch
	Attempt          int
	AllowUnprotected bool
}

// publishLimit bounds one publication; it also bounds how long the end of a job waits for the bus.
const publishLimit = 2 * time.Second

// pollInterval is how often a metadata service is asked.
const pollInterval = time.Second

// Run supervises one attempt of a job and returns the exit code.
func Run(ctx context.Context, s Settings, o RunOptions) (int, error) {
	dir, err := checkpointDir(o.Dir)
	if err != nil {
		return 0, err
	}
	trigger, err := supervise.ParseTrigger(o.Trigger)
	if err != nil {
		return 0, fmt.Errorf("--trigger: %w", err)
	}
	scanner, err := framework.ByName(o.Framework, framework.Options{Marker: o.Marker})
	if err != nil {
		return 0, fmt.Errorf("--framework: %w", err)
	}
	opener := &opener{settings: s}
	if _, err := opener.open(ctx); err != nil && (!o.AllowUnprotected || handlers.Class(err) != handlers.ErrUnavailable) {
		return 0, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(signals)

	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()

	node, poller := locate(ctx, s, o)
	claim, err := supervise.Identity(NewID(), node)
	if err != nil {
		return 0, err
	}
	notices := make(chan events.Event, 16)
	if poller != nil {
		workers.Go(func() {
			poller.Run(ctx, pollInterval, func(n events.Notice) {
				e, err := notice.Event(n, time.Now())
				if err != nil {
					s.Log.Warn("a notice cannot be used", "error", err)
					return
				}
				select {
				case notices <- e:
				case <-ctx.Done():
				}
			})
		})
	}
	line := &line{settings: s, opener: opener, job: o.Job, wake: make(chan struct{}, 1), records: make(chan handlers.Job, 64)}
	if s.Bus != NoBus {
		workers.Go(func() { line.listen(ctx) })
	}
	start := catalog.Start{
		Job: o.Job, Attempt: o.Attempt, UID: NewID(), Restarter: o.Restarter, Launch: o.Launch,
		Claim: claim, Lease: s.Lease, Dead: supervise.Dead(claim),
	}
	sup := &supervise.Supervisor{
		Job: o.Job, Argv: o.Argv, Dir: dir, State: s.StateDir, Node: node, Claim: claim,
		Trigger: trigger, Grace: o.Grace, Lease: s.Lease,
		AllowUnprotected: o.AllowUnprotected, Keep: o.OnNotice == "keep", StopSoft: o.OnNotice == "stop",
		Start: func(ctx context.Context) (supervise.Hold, handlers.Job, error) {
			c, err := opener.open(ctx)
			if err != nil {
				return nil, handlers.Job{}, err
			}
			if err := c.Register(ctx, node, o.Job); err != nil { // before the claim: no notice may miss it
				return nil, handlers.Job{}, err
			}
			attempt, job, err := c.TryStart(ctx, start)
			if err != nil {
				return nil, job, err
			}
			return hold{attempt, c, o.Job}, job, nil
		},
		OpenStop: func(ctx context.Context) (*events.Notice, error) {
			c, err := opener.open(ctx)
			if err != nil {
				return nil, err
			}
			return c.OpenStop(ctx, node)
		},
		Tell:     line.tell,
		Scanner:  scannerAdapter{scanner},
		Transfer: &transferAdapter{opener},
		Notices:  notices,
		Wake:     line.wake,
		Signals:  signals,
		Log:      s.Log,
	}
	code, err := sup.Run(ctx)
	if c, openErr := opener.open(ctx); openErr == nil && err == nil && code != supervise.ExitPreempted && code != supervise.ExitNotDurable {
		ctx, cancel := context.WithTimeout(ctx, publishLimit)
		defer cancel()
		_ = c.Unregister(ctx, node, o.Job) // a hint: whoever reads it checks the record
	}
	return code, err
}

// checkpointDir makes the directory and returns its absolute path.
func checkpointDir(dir string) (string, error) {
	if strings.Contains(dir, "://") {
		return "", fmt.Errorf("%w: --checkpoint-dir %q: this version takes a local directory", handlers.ErrInvalid, dir)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%w: --checkpoint-dir %q: %w", handlers.ErrInvalid, dir, err)
	}
	if err := os.MkdirAll(filepath.Join(abs, ".reprieve"), 0o755); err != nil {
		if info, statErr := os.Stat(abs); statErr == nil && !info.IsDir() {
			return "", fmt.Errorf("%w: --checkpoint-dir %s is a file: give a directory", handlers.ErrInvalid, abs)
		}
		return "", fmt.Errorf("%w: --checkpoint-dir %s: %w", handlers.ErrInvalid, abs, errors.Unwrap(err))
	}
	return filepath.EvalSymlinks(abs)
}

// locate says which machine this is, and who tells of its notices; nil if nobody does.
func locate(ctx context.Context, s Settings, o RunOptions) (events.Node, *metadata.AWS) {
	host, _ := os.Hostname()
	node := events.Node{Provider: "host", Instance: host}
	if name := os.Getenv("REPRIEVE_LOCAL_NODE"); name != "" {
		node = events.Node{Provider: "local", Instance: name}
	}
	if o.Provider == "none" {
		return node, nil
	}
	poller := &metadata.AWS{Endpoint: o.MetadataEndpoint, Log: s.Log}
	found, err := poller.Detect(ctx)
	if err != nil {
		if o.Provider == "aws" || o.MetadataEndpoint != "" {
			s.Log.Warn("the metadata service does not answer: notices come by SIGTERM and the bus alone", "error", err)
		}
		return node, nil
	}
	return found, poller
}

// opener opens the store once it answers.
type opener struct {
	settings Settings
	mu       sync.Mutex
	catalog  *catalog.Catalog
}

func (o *opener) open(ctx context.Context) (*catalog.Catalog, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.catalog == nil {
		c, _, err := o.settings.OpenCatalog(ctx)
		if err != nil {
			return nil, err
		}
		o.catalog = c
	}
	return o.catalog, nil
}

// line is the connection to the bus: a hint both ways. The supervisor never waits for it.
type line struct {
	settings Settings
	opener   *opener
	job      string
	wake     chan struct{}
	records  chan handlers.Job
}

// tell takes a record whose outbox may hold events.
func (l *line) tell(job handlers.Job) {
	if l.settings.Bus == NoBus || len(job.Outbox) == 0 {
		return
	}
	select {
	case l.records <- job:
	default: // the watch pass publishes what is left over
	}
}

// listen connects, wakes the supervisor when something happens to its job, and publishes.
func (l *line) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := l.session(ctx); err != nil && ctx.Err() == nil {
			l.settings.Log.Warn("the bus does not answer; the job goes on without it", "bus", redact(l.settings.Bus), "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	}
}

func (l *line) session(ctx context.Context) error {
	b, err := l.settings.OpenBus(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	feed, err := b.Subscribe(ctx, bus.Subscription{Types: []string{bus.Any}})
	if err != nil {
		return err
	}
	defer func() { _ = feed.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	var publisher sync.WaitGroup
	defer publisher.Wait()
	defer cancel()
	publisher.Go(func() { l.publishAll(ctx, b) })
	for {
		m, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		if m.Err == nil && m.Event.Subject() == l.job {
			select {
			case l.wake <- struct{}{}:
			default:
			}
		}
	}
}

// publishAll publishes what is told until ctx ends, and then what has been told by then.
func (l *line) publishAll(ctx context.Context, b bus.Bus) {
	for {
		select {
		case job := <-l.records:
			l.publish(ctx, b, job)
			continue
		default:
		}
		select {
		case job := <-l.records:
			l.publish(ctx, b, job)
		case <-ctx.Done():
			return
		}
	}
}

func (l *line) publish(ctx context.Context, b bus.Bus, job handlers.Job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishLimit)
	defer cancel()
	c, err := l.opener.open(ctx)
	if err == nil {
		err = Publish(ctx, b, c, job)
	}
	if err != nil {
		l.settings.Log.Warn("cannot publish; the watch pass does it", "error", err)
	}
}

// redact hides the password of a URL.
func redact(raw string) string {
	if u, err := url.Parse(raw); err == nil {
		return u.Redacted()
	}
	return "(unreadable)"
}
