// Package metadata hears notices about the machine it runs on from the cloud's metadata service. It
// polls, because none of these services pushes reliably; it never gives up, and decides nothing.
package metadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/events/notice"
	"github.com/reprieve-dev/reprieve/handlers"
)

const (
	awsEndpoint = "http://169.254.169.254"
	tokenTTL    = 6 * time.Hour
	callLimit   = 2 * time.Second        // of one request
	detectLimit = 500 * time.Millisecond // of a token request on a machine that may not be one of theirs
)

// AWS polls the EC2 instance metadata service, version 2. Create it with its exported fields, call
// Detect, then Run, from one goroutine at a time.
type AWS struct {
	Endpoint string       // default http://169.254.169.254
	Client   *http.Client // default: one that keeps its connection and goes through no proxy
	Log      *slog.Logger

	node    events.Node
	token   string
	renewAt time.Time
	failing bool
	seen    map[string]*seen // by path
}

// seen is the notice under one path.
type seen struct {
	notice  events.Notice
	missing int // how often in a row it was not there
}

// errAbsent: there is nothing under a path (404), which is the normal case.
var errAbsent = errors.New("absent")

// Detect asks who this machine is. ErrUnavailable if no metadata service answers.
func (a *AWS) Detect(ctx context.Context) (events.Node, error) {
	if a.Endpoint == "" {
		a.Endpoint = awsEndpoint
	}
	a.Endpoint = strings.TrimSuffix(a.Endpoint, "/")
	if a.Client == nil {
		a.Client = &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: callLimit}).DialContext,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, DisableCompression: true,
		}}
	}
	a.seen = map[string]*seen{}
	if err := a.first(ctx); err != nil {
		return events.Node{}, fmt.Errorf("%w: ask %s for a token: %w", handlers.ErrUnavailable, a.Endpoint, err)
	}
	body, err := a.get(ctx, "instance-id")
	id := strings.TrimSpace(string(body))
	if err == nil && !strings.HasPrefix(id, "i-") {
		err = fmt.Errorf("%.40q is none", id)
	}
	if err != nil {
		return events.Node{}, fmt.Errorf("%w: ask %s for the instance id: %w", handlers.ErrUnavailable, a.Endpoint, err)
	}
	a.node = events.Node{Provider: "aws", Instance: id}
	return a.node, nil
}

// first asks for the first token, for detectLimit. A connection that is made although no token comes
// back is what a hop limit of 1 looks like from inside a container.
func (a *AWS) first(ctx context.Context) error {
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	ctx, cancel := context.WithTimeout(ctx, detectLimit)
	defer cancel()
	err := a.renew(ctx)
	if connected.Load() && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("it is there but gives out no token, which a hop limit of 1 does to containers: set the instance's metadata hop limit to 2: %w", err)
	}
	return err
}

// Run polls every interval until ctx ends and calls hear, in this goroutine, for each notice: once
// when it appears or its deadline moves, and as cancelled once it is gone from two polls in a row.
func (a *AWS) Run(ctx context.Context, interval time.Duration, hear func(events.Notice)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		a.poll(ctx, hear)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// poll asks for every path, so that one that fails does not hide the others.
func (a *AWS) poll(ctx context.Context, hear func(events.Notice)) {
	var failed error
	for _, path := range []string{notice.IMDSSpotAction, notice.IMDSRebalance} {
		body, err := a.get(ctx, path)
		switch {
		case errors.Is(err, errAbsent):
			a.gone(path, hear)
		case err == nil:
			err = a.there(path, body, hear)
		}
		if err != nil && !errors.Is(err, errAbsent) {
			failed = fmt.Errorf("read %s: %w", path, err)
		}
	}
	switch {
	case ctx.Err() != nil:
	case failed != nil && !a.failing:
		a.Log.Warn("the metadata service does not answer as it should; asking on", "endpoint", a.Endpoint, "error", failed)
	case failed == nil && a.failing:
		a.Log.Info("the metadata service answers again", "endpoint", a.Endpoint)
	}
	a.failing = failed != nil
}

func (a *AWS) there(path string, body []byte, hear func(events.Notice)) error {
	n, err := notice.FromIMDS(path, body, a.node, time.Now())
	if err != nil {
		return err
	}
	have := a.seen[path]
	if have != nil && n.Kind == events.KindHibernate && have.notice.Kind == n.Kind {
		n.Deadline = have.notice.Deadline // it is now, at each reading
	}
	if have != nil && events.SameNotice(have.notice, n) {
		have.missing = 0
		return nil
	}
	a.seen[path] = &seen{notice: n}
	hear(n)
	return nil
}

func (a *AWS) gone(path string, hear func(events.Notice)) {
	have := a.seen[path]
	if have == nil {
		return
	}
	if have.missing++; have.missing < 2 {
		return
	}
	delete(a.seen, path)
	n := have.notice
	n.Cancelled = true
	hear(n)
}

// get reads one path. errAbsent for 404.
func (a *AWS) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if time.Now().After(a.renewAt) {
		if err := a.renew(ctx); err != nil {
			return nil, err
		}
	}
	body, status, err := a.do(ctx, http.MethodGet, "/latest/meta-data/"+path, "X-aws-ec2-metadata-token", a.token)
	if err == nil && status == http.StatusUnauthorized { // the token ran out, or the service was restarted
		if err := a.renew(ctx); err != nil {
			return nil, err
		}
		body, status, err = a.do(ctx, http.MethodGet, "/latest/meta-data/"+path, "X-aws-ec2-metadata-token", a.token)
	}
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound:
		return nil, errAbsent
	case status != http.StatusOK:
		return nil, fmt.Errorf("%s: HTTP status %d", path, status)
	}
	return body, nil
}

func (a *AWS) renew(ctx context.Context) error {
	body, status, err := a.do(ctx, http.MethodPut, "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", fmt.Sprint(int(tokenTTL.Seconds())))
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("token: HTTP status %d", status)
	}
	a.token, a.renewAt = string(body), time.Now().Add(tokenTTL/2)
	return nil
}

func (a *AWS) do(ctx context.Context, method, path, header, value string) (body []byte, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, method, a.Endpoint+path, nil)
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set(header, value)
	response, err := a.Client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(response.Body, 64<<10))
	return body, response.StatusCode, err
}
