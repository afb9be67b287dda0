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
	"strings"
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
	Endpoint string // default http://169.254.169.254
	Log      *slog.Logger

	client  http.Client
	node    events.Node
	token   string
	renewAt time.Time
	away    bool
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
	a.client.Transport = &http.Transport{
		DialContext:         (&net.Dialer{Timeout: callLimit}).DialContext,
		MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, DisableCompression: true,
	}
	a.seen = map[string]*seen{}
	ctx, cancel := context.WithTimeout(ctx, detectLimit)
	defer cancel()
	if err := a.renew(ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) && a.reachable(ctx) {
			err = fmt.Errorf("it is there but gives out no token, which a hop limit of 1 does to containers: set the instance's metadata hop limit to 2: %w", err)
		}
		return events.Node{}, fmt.Errorf("%w: ask %s for a token: %w", handlers.ErrUnavailable, a.Endpoint, err)
	}
	id, err := a.get(ctx, "instance-id")
	if err != nil {
		return events.Node{}, fmt.Errorf("%w: ask %s for the instance id: %w", handlers.ErrUnavailable, a.Endpoint, err)
	}
	a.node = events.Node{Provider: "aws", Instance: strings.TrimSpace(string(id))}
	return a.node, nil
}

// reachable reports whether something listens at the endpoint at all.
func (a *AWS) reachable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), detectLimit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(a.Endpoint, "http://")+":80")
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
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

func (a *AWS) poll(ctx context.Context, hear func(events.Notice)) {
	for _, path := range []string{notice.IMDSSpotAction, notice.IMDSRebalance} {
		body, err := a.get(ctx, path)
		switch {
		case errors.Is(err, errAbsent):
			a.gone(path, hear)
		case err != nil:
			if !a.away && ctx.Err() == nil {
				a.Log.Warn("the metadata service does not answer; asking on", "endpoint", a.Endpoint, "error", err)
			}
			a.away = true
			return
		default:
			a.there(path, body, hear)
		}
	}
	if a.away {
		a.Log.Info("the metadata service answers again", "endpoint", a.Endpoint)
		a.away = false
	}
}

func (a *AWS) there(path string, body []byte, hear func(events.Notice)) {
	n, err := notice.FromIMDS(path, body, a.node, time.Now())
	if err != nil {
		a.Log.Warn("the metadata service says something that cannot be read", "path", path, "error", err)
		return
	}
	have := a.seen[path]
	if have != nil && n.Kind == events.KindHibernate {
		n.Deadline = have.notice.Deadline // it is now, at each reading
	}
	if have != nil && events.SameNotice(have.notice, n) {
		have.missing = 0
		return
	}
	a.seen[path] = &seen{notice: n}
	hear(n)
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
	response, err := a.client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(response.Body, 64<<10))
	return body, response.StatusCode, err
}
