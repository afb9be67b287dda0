package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// answer returns the server's error code, "" if it sent none (HEAD has no body), and HTTP status, 0
// if it did not answer.
func answer(err error) (code string, status int) {
	var api smithy.APIError
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	var response *awshttp.ResponseError
	if errors.As(err, &response) {
		status = response.HTTPStatusCode()
	}
	return code, status
}

// isMissing says whether the key does not exist, as against the bucket or a multipart upload.
func isMissing(err error) bool {
	code, status := answer(err)
	return code == "NoSuchKey" || (status == http.StatusNotFound && code != "NoSuchBucket" && code != "NoSuchUpload")
}

// didNothing says whether the server refused to begin: too many requests, or another write to the
// key under way.
func didNothing(err error) bool {
	switch code, _ := answer(err); code {
	case "SlowDown", "ConditionalRequestConflict", "OperationAborted":
		return true
	}
	return false
}

// classify gives an error of the SDK its class and, where a person has to act, a sentence.
func (s *Store) classify(ctx context.Context, doing string, err error) error {
	if handlers.Class(err) != handlers.ErrUnavailable || ctx.Err() != nil {
		return blob.Unavailable(ctx, doing, err) // the body's own error, or cancelled
	}
	code, status := answer(err)
	what := code
	if what == "" {
		what = fmt.Sprintf("HTTP status %d", status)
	}
	switch code {
	case "NoSuchBucket":
		return fmt.Errorf("%s: the bucket %s does not exist: create it or correct --store: %w", doing, s.bucket, handlers.ErrPermanent)
	case "PermanentRedirect", "AuthorizationHeaderMalformed":
		return fmt.Errorf("%s: the bucket %s is in another region (%w): correct region in --store: %w", doing, s.bucket, err, handlers.ErrPermanent)
	case "RequestTimeTooSkewed":
		return fmt.Errorf("%s: the clock of this machine is off by more than the server allows: set it: %w", doing, handlers.ErrUnavailable)
	case "ExpiredToken", "ExpiredTokenException":
		return fmt.Errorf("%s: the credentials have run out: renew them: %w", doing, handlers.ErrUnavailable)
	case "InvalidAccessKeyId", "SignatureDoesNotMatch":
		return fmt.Errorf("%s: the server does not accept the credentials (%s): correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: %w", doing, code, handlers.ErrPermanent)
	}
	switch {
	case isMissing(err):
		return fmt.Errorf("%s: %w", doing, handlers.ErrNotFound)
	case status == http.StatusPreconditionFailed:
		return fmt.Errorf("%s: it exists, or not in that version: %w", doing, handlers.ErrConflict)
	case status == http.StatusMovedPermanently:
		return fmt.Errorf("%s: the bucket %s is in another region: correct region in --store: %w", doing, s.bucket, handlers.ErrPermanent)
	case status == http.StatusForbidden, status == http.StatusUnauthorized:
		return fmt.Errorf("%s: access to the bucket %s is denied (%s): allow s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and s3:ListBucket: %w", doing, s.bucket, what, handlers.ErrPermanent)
	case status == http.StatusNotImplemented:
		return fmt.Errorf("%s: the server cannot do what Reprieve needs (%w): use another one: %w", doing, err, handlers.ErrPermanent)
	}
	return blob.Unavailable(ctx, doing, err)
}
