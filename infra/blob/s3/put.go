package s3

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

const (
	minPart      = 8 << 20 // bytes; up to that an object is one request
	maxParts     = 10_000
	abortTime    = 5 * time.Second
	onceAttempts = 6
	onceWait     = 50 * time.Millisecond // before the second attempt, then doubling
)

// Put holds one part in memory: 8 MiB, or a 10,000th of an object above 80 GB. The ModTime it returns is the
// server's time at the end of the upload.
func (s *Store) Put(ctx context.Context, key string, body io.Reader, size int64, cond blob.Cond) (blob.Info, error) {
	if err := blob.CheckPut(key, size, cond); err != nil {
		return blob.Info{}, err
	}
	w := write{Store: s, ctx: ctx, key: s.key(key), body: blob.Exact(ctx, body, size), size: size}
	if cond.Absent {
		w.ifNoneMatch = aws.String("*")
	}
	if cond.Version != "" {
		w.ifMatch = aws.String(`"` + string(cond.Version) + `"`)
	}
	put := w.small
	if size > minPart {
		put = w.large
	}
	etag, metadata, err := put()
	doing := fmt.Sprintf("put %q", key)
	if err != nil {
		if cond.Version != "" && isMissing(err) {
			return blob.Info{}, fmt.Errorf("%s: it does not exist: %w", doing, handlers.ErrConflict)
		}
		return blob.Info{}, s.classify(ctx, doing, err)
	}
	now, err := serverTime(doing, metadata)
	if err != nil {
		return blob.Info{}, err
	}
	return describe(doing, key, &size, etag, &now)
}

type write struct {
	*Store
	ctx                  context.Context
	key                  *string
	body                 io.Reader // ends only after size bytes
	size                 int64
	ifMatch, ifNoneMatch *string
}

func (w *write) small() (etag *string, metadata middleware.Metadata, err error) {
	data := make([]byte, w.size)
	if err := w.fill(data); err != nil {
		return nil, metadata, err
	}
	if err := w.end(); err != nil {
		return nil, metadata, err
	}
	err = once(w.ctx, func(visible func(*s3.Options)) error {
		out, err := w.client.PutObject(w.ctx, &s3.PutObjectInput{
			Bucket: &w.bucket, Key: w.key, IfMatch: w.ifMatch, IfNoneMatch: w.ifNoneMatch,
			Body: bytes.NewReader(data), ContentLength: &w.size, ContentMD5: md5Of(data),
		}, visible)
		if err == nil {
			etag, metadata = out.ETag, out.ResultMetadata
		}
		return err
	})
	return etag, metadata, err
}

func (w *write) large() (etag *string, metadata middleware.Metadata, err error) {
	created, err := w.client.CreateMultipartUpload(w.ctx, &s3.CreateMultipartUploadInput{Bucket: &w.bucket, Key: w.key})
	if err != nil {
		return nil, metadata, err
	}
	defer func() {
		if err == nil {
			return
		}
		// Nobody sees what an upload holds but everybody pays for it. One whose abort fails too is
		// found by the reaper.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), abortTime)
		defer cancel()
		_, _ = w.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &w.bucket, Key: w.key, UploadId: created.UploadId})
	}()
	parts, err := w.parts(created.UploadId)
	if err != nil {
		return nil, metadata, err
	}
	// A conflict here ends the upload on the server, so it is not repeated.
	out, err := w.client.CompleteMultipartUpload(w.ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &w.bucket, Key: w.key, UploadId: created.UploadId, IfMatch: w.ifMatch, IfNoneMatch: w.ifNoneMatch,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	}, sendOnce)
	if err != nil {
		return nil, metadata, err
	}
	return out.ETag, out.ResultMetadata, nil
}

func (w *write) parts(upload *string) ([]types.CompletedPart, error) {
	var parts []types.CompletedPart
	buffer := make([]byte, partSize(w.size))
	for left := w.size; left > 0; {
		data := buffer[:min(left, int64(len(buffer)))]
		if err := w.fill(data); err != nil {
			return nil, err
		}
		left -= int64(len(data))
		number := aws.Int32(int32(len(parts) + 1))
		out, err := w.client.UploadPart(w.ctx, &s3.UploadPartInput{
			Bucket: &w.bucket, Key: w.key, UploadId: upload, PartNumber: number,
			Body: bytes.NewReader(data), ContentLength: aws.Int64(int64(len(data))), ContentMD5: md5Of(data),
		})
		if err != nil {
			return nil, err
		}
		parts = append(parts, types.CompletedPart{ETag: out.ETag, PartNumber: number})
	}
	return parts, w.end()
}

// fill reads len(data) bytes, which blob.Exact has or else an error.
func (w *write) fill(data []byte) error {
	_, err := io.ReadFull(w.body, data)
	return err
}

// end makes sure that the body has ended.
func (w *write) end() error {
	_, err := io.Copy(io.Discard, w.body)
	return err
}

// partSize is the least multiple of 1 MiB from 8 MiB on with which maxParts parts suffice.
func partSize(size int64) int64 {
	const mib = 1 << 20
	return max(minPart, (size+maxParts*mib-1)/(maxParts*mib)*mib)
}

// md5Of is the one checksum that every compatible server verifies.
func md5Of(data []byte) *string {
	sum := md5.Sum(data)
	return aws.String(base64.StdEncoding.EncodeToString(sum[:]))
}

func sendOnce(o *s3.Options) { o.Retryer = aws.NopRetryer{} }

// once sends a request whose effect others can see, again only after an answer that says that
// nothing happened.
func once(ctx context.Context, send func(visible func(*s3.Options)) error) error {
	wait := onceWait
	for attempt := 1; ; attempt++ {
		err := send(sendOnce)
		if attempt == onceAttempts || !didNothing(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait/2 + rand.N(wait)):
		}
		wait *= 2
	}
}
