package s3

var PartSize = partSize
