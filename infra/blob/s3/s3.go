// Package s3 is an S3 bucket, or a part of one, as a store: Amazon's or any compatible server that
// obeys If-None-Match and If-Match on PUT (blob.Probe finds out). Directory buckets, which list
// without order, are refused.
//
// Requests that others can see the effect of (PUT, CompleteMultipartUpload, DELETE) are sent once and
// only repeated when the server said that it did nothing. A silent retry could find its own first
// attempt and report a conflict about a write that won, or overwrite what somebody wrote in between.
// Everything else is left to the SDK's retries.
package s3

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

const (
	maxPrefix = 120 // bytes; with a slash and the longest key it stays below the 1024 of S3
	// A server that is silent for so long after it got a request will not answer any more.
	responseTimeout = 2 * time.Minute
)

// Store implements blob.Store. A version is an ETag, so it may come back with the same content.
type Store struct {
	client *s3.Client
	bucket string
	base   string // "" or the prefix with a slash at its end
}

// Open makes a store of s3://bucket/prefix. Of the query it knows endpoint (http://host:port of a
// compatible server), region, and path_style (true for http://host/bucket/key). Credentials come from the
// SDK's standard chain, and so does the region unless given. It does not talk to the bucket. A wrong URL is
// ErrInvalid; credentials that cannot be had are ErrUnavailable, because a metadata service may have them later.
func Open(ctx context.Context, location *url.URL) (*Store, error) {
	s := &Store{bucket: location.Host}
	invalid := func(format string, args ...any) (*Store, error) {
		return nil, fmt.Errorf("store %s: %s: %w", location.Redacted(), fmt.Sprintf(format, args...), handlers.ErrInvalid)
	}
	prefix := strings.Trim(location.Path, "/")
	switch {
	case location.Scheme != "s3" || location.Host == "":
		return invalid("write it as s3://bucket/prefix")
	case location.User != nil:
		return invalid("credentials do not belong in the URL: remove them and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case location.Fragment != "":
		return invalid("a prefix cannot have the part behind #: remove it")
	case len(prefix) > maxPrefix:
		return invalid("the prefix has %d bytes: shorten it to %d", len(prefix), maxPrefix)
	}
	if prefix != "" {
		if err := blob.CheckKey(prefix); err != nil {
			return nil, fmt.Errorf("store %s: prefix: %w", location.Redacted(), err)
		}
		s.base = prefix + "/"
	}
	query, err := url.ParseQuery(location.RawQuery)
	if err != nil {
		return invalid("its query cannot be read (%v): escape it", err)
	}
	var unknown []string
	for name := range query {
		if !slices.Contains([]string{"endpoint", "region", "path_style"}, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return invalid("unknown parameter %s: use endpoint, region or path_style", strings.Join(unknown, ", "))
	}
	endpoint := query.Get("endpoint")
	if endpoint != "" {
		u, err := url.Parse(endpoint)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			return invalid("endpoint %q is no server: write it as http://host:port", endpoint)
		}
	}
	pathStyle := false
	if given := query.Get("path_style"); given != "" {
		if pathStyle, err = strconv.ParseBool(given); err != nil {
			return invalid("path_style %q: write true or false", given)
		}
	}

	transport := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.ResponseHeaderTimeout = responseTimeout })
	cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion(query.Get("region")), config.WithHTTPClient(transport))
	if err != nil {
		return invalid("the AWS configuration cannot be read (%v): correct it", err)
	}
	if cfg.Region == "" {
		if endpoint == "" {
			return invalid("no region: add ?region=REGION or set AWS_REGION")
		}
		cfg.Region = "us-east-1" // what compatible servers call theirs
	}
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		return nil, blob.Unavailable(ctx, fmt.Sprintf("store %s: find credentials (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, set AWS_PROFILE, or give the machine a role)", location.Redacted()), err)
	}
	s.client = s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.UsePathStyle = pathStyle
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
		// The default, a checksum in a trailer, is not understood by many compatible servers.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})
	return s, nil
}

func (s *Store) key(key string) *string { return aws.String(s.base + key) }

func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, blob.Info, error) {
	if err := blob.CheckKey(key); err != nil {
		return nil, blob.Info{}, err
	}
	doing := fmt.Sprintf("get %q", key)
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: s.key(key)})
	if err != nil {
		return nil, blob.Info{}, s.classify(ctx, doing, err)
	}
	info, err := describe(doing, key, out.ContentLength, out.ETag, out.LastModified)
	if err != nil {
		out.Body.Close()
		return nil, blob.Info{}, err
	}
	return out.Body, info, nil
}

func (s *Store) Stat(ctx context.Context, key string) (blob.Info, error) {
	if err := blob.CheckKey(key); err != nil {
		return blob.Info{}, err
	}
	doing := fmt.Sprintf("stat %q", key)
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: s.key(key)})
	if err != nil {
		return blob.Info{}, s.classify(ctx, doing, err)
	}
	return describe(doing, key, out.ContentLength, out.ETag, out.LastModified)
}

// describe refuses an answer without an ETag: a Cond made of it would hold always.
func describe(doing, key string, size *int64, etag *string, mod *time.Time) (blob.Info, error) {
	version := strings.Trim(aws.ToString(etag), `"`) // some servers quote it here and not there
	if size == nil || version == "" || mod == nil {
		return blob.Info{}, fmt.Errorf("%s: the server answers without Content-Length, ETag or Last-Modified: use another one: %w", doing, handlers.ErrPermanent)
	}
	return blob.Info{Key: key, Size: *size, Version: blob.Version(version), ModTime: *mod}, nil
}

// serverTime is the Date of an answer.
func serverTime(doing string, metadata middleware.Metadata) (time.Time, error) {
	now, ok := awsmiddleware.GetServerTime(metadata)
	if !ok || now.IsZero() {
		return time.Time{}, fmt.Errorf("%s: the server answers without Date: use another one: %w", doing, handlers.ErrPermanent)
	}
	return now, nil
}

// List skips what is no key of a store (the "folders" that consoles create), so one call may
// take several requests.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) (blob.Page, error) {
	if err := blob.CheckLimit(limit); err != nil {
		return blob.Page{}, err
	}
	doing := fmt.Sprintf("list %q", prefix)
	for last := after; ; {
		in := &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: aws.String(s.base + prefix), MaxKeys: aws.Int32(int32(limit))}
		if s.base+last != "" { // also at the start: the "folder" of the prefix is no key
			in.StartAfter = aws.String(s.base + last)
		}
		out, err := s.client.ListObjectsV2(ctx, in)
		if err != nil {
			return blob.Page{}, s.classify(ctx, doing, err)
		}
		page := blob.Page{More: aws.ToBool(out.IsTruncated)}
		if page.Now, err = serverTime(doing, out.ResultMetadata); err != nil {
			return blob.Page{}, err
		}
		for _, object := range out.Contents {
			key := strings.TrimPrefix(aws.ToString(object.Key), s.base)
			if key <= last {
				return blob.Page{}, fmt.Errorf("%s: the bucket lists %q behind %q, out of order: use a general purpose bucket: %w", doing, key, last, handlers.ErrPermanent)
			}
			last = key
			if blob.CheckKey(key) != nil {
				continue
			}
			info, err := describe(doing, key, object.Size, object.ETag, object.LastModified)
			if err != nil {
				return blob.Page{}, err
			}
			page.Objects = append(page.Objects, info)
		}
		if len(page.Objects) > 0 || !page.More {
			return page, nil
		}
		if len(out.Contents) == 0 {
			return blob.Page{}, fmt.Errorf("%s: the server sent an empty page and says there is more: try again: %w", doing, handlers.ErrUnavailable)
		}
	}
}

func (s *Store) Delete(ctx context.Context, key string) error {
	if err := blob.CheckKey(key); err != nil {
		return err
	}
	err := once(ctx, func(visible func(*s3.Options)) error {
		_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: s.key(key)}, visible)
		return err
	})
	if err != nil && !isMissing(err) {
		return s.classify(ctx, fmt.Sprintf("delete %q", key), err)
	}
	return nil
}
